/* Order of search results: guides before reference, decisions last. The other figures are Sphinx's defaults. */
var Scorer = {
  score: ([docname, title, anchor, description, score]) => {
    if (/^(how-to|tutorials)\/(?!index)/.test(docname)) return score + 10;
    if (/^reference/.test(docname)) return score - 5;
    if (/^(decisions|changes|paper)/.test(docname)) return score - 10;
    return score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
