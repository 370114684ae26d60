"""The chapters of the page: data, training and layout, scores, answers, studies."""
