"""The page's pictures: training, scores and studies, as inline SVG."""
