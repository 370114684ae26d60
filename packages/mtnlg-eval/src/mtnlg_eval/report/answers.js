"use strict";
// The browser of answers. Its data are texts of strangers: they reach the page by textContent and append alone.
(() => {
  const PAGE = 50;
  const KEPT = 4; // results in memory
  const element = document.getElementById("answers-index");
  if (!element) return;
  const index = JSON.parse(element.textContent);
  const part = (name) => document.getElementById(`answers-${name}`);
  const arrived = new Map();
  const loaded = new Map();
  let state = {};
  let latest = 0;

  function make(tag, properties, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  }

  // Data: a script calls mtnlgAnswers(name, base64 of gzip of JSON); samples.py describes it.
  window.mtnlgAnswers = (name, data) => arrived.get(name)?.(data);

  function load(name) {
    if (!loaded.has(name)) {
      const data = new Promise((resolve, reject) => {
        arrived.set(name, resolve);
        const missing = () => reject(new Error(`report/samples/${name}.js is not beside this page: move both together`));
        document.head.append(make("script", { src: `report/samples/${name}.js`, onerror: missing }));
      });
      loaded.set(name, data.then(unpack));
      if (loaded.size > KEPT) loaded.delete(loaded.keys().next().value);
    }
    return loaded.get(name);
  }

  async function unpack(data) {
    const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const { total, texts, rows } = JSON.parse(await new Response(stream).text());
    return { total, rows: rows.map((row) => new Row(texts, ...row)) };
  }

  class Row {
    constructor(texts, key, id, right, answer, chosen, shots, cut, prompt, choices) {
      Object.assign(this, { texts, key, id, right, answer, chosen, shots, cut, pieces: prompt, packed: choices });
    }
    // The row's own part of the prompt is behind the examples, which have as many paragraphs each.
    get start() { return this.shots ? Math.floor((this.pieces.length * this.shots) / (this.shots + 1)) : 0; }
    text(from, to) { return this.pieces.slice(from, to).map((n) => this.texts[n]).join("\n\n"); }
    get examples() { return this.start ? this.text(0, this.start) + "\n\n" : ""; }
    get own() { return this.text(this.start); }
    get choices() {
      return this.packed.map(([lead, text, score, logp, alone]) =>
        ({ lead: this.texts[lead], text: this.texts[text], score, logp, alone }));
    }
    get searched() {
      const choices = this.packed.map(([lead, text]) => this.texts[lead] + this.texts[text]);
      return (this.lower ??= [this.id, this.own, ...choices].join("\n").toLowerCase());
    }
  }

  // Which rows: of one result, or where two differ.
  const FILTERS = [
    ["all", "all", () => true],
    ["wrong", "wrong", (row) => !row.right],
    ["right", "right", (row) => row.right],
  ];
  const COMPARED = [
    ["differ", "differing", (row, other) => other && row.right !== other.right],
    ["lost", "right, the other wrong", (row, other) => other && row.right && !other.right],
    ["won", "wrong, the other right", (row, other) => other && !row.right && other.right],
  ];

  function complete(given) {
    const named = index.find((entry) => entry.name === given.of && (!given.task || entry.task === given.task));
    const task = named?.task ?? (index.some((entry) => entry.task === given.task) ? given.task : index[0].task);
    const results = index.filter((entry) => entry.task === task);
    const of = named ?? results.find((entry) => entry.shots === given.shots) ?? results[0];
    const others = results.filter((entry) => entry !== of && entry.rows === of.rows);
    const likely = others.find((entry) => entry.shots === of.shots);
    const beside = others.find((entry) => entry.name === given.with) ?? (given.with === "" ? undefined : likely);
    const show = given.show ?? (given.row && "all");
    return { task, of, beside, others, show, find: given.find ?? "", row: given.row, first: 0, chosen: given.chosen };
  }

  function remember() {
    const { task, of, beside, show, find } = state;
    const words = new URLSearchParams({ task, of: of.name, with: beside?.name ?? "", show, find });
    history.replaceState(null, "", `#${words}`);
  }

  async function render() {
    const ticket = ++latest;
    fill("task", [...new Map(index.map((entry) => [entry.task, entry.title]))], state.task);
    fill("of", index.filter((entry) => entry.task === state.task).map((entry) => [entry.name, entry.label]), state.of.name);
    const others = state.others.map((entry) => [entry.name, entry.label]);
    fill("with", [["", "nothing"], ...others], state.beside?.name ?? "");
    if (part("find").value !== state.find) part("find").value = state.find;
    part("state").textContent = "Loading the answers …";
    try {
      const names = [state.of, state.beside].filter(Boolean).map((entry) => entry.name);
      const [mine, theirs] = await Promise.all(names.map(load));
      if (ticket === latest) list(mine, theirs);
    } catch (error) {
      part("rows").replaceChildren();
      part("state").textContent = error.message;
    }
  }

  function fill(name, options, chosen) {
    part(name).replaceChildren(...options.map(([value, label]) => new Option(label, value, false, value === chosen)));
  }

  function list(mine, theirs) {
    const others = new Map(theirs?.rows.map((row) => [row.key, row]));
    const filters = theirs ? [...COMPARED, ...FILTERS] : FILTERS;
    const kept = filters.map(([, , keeps]) => mine.rows.filter((row) => keeps(row, others.get(row.key))));
    let number = filters.findIndex(([name]) => name === state.show);
    if (number < 0) number = kept.findIndex((rows, n) => rows.length && filters[n][0] !== "all");
    if (number < 0) number = filters.findIndex(([name]) => name === "all");
    state.show = filters[number][0];
    if (state.chosen) remember();
    part("show").replaceChildren(...filters.map(([name, label], n) => button(`${label} ${count(kept[n].length)}`, n === number, () => {
      Object.assign(state, { show: name, first: 0, chosen: true });
      list(mine, theirs);
      part("show").children[n].focus();
    })));
    const wanted = state.find.toLowerCase();
    const rows = kept[number].filter((row) => row.searched.includes(wanted));
    const linked = rows.findIndex((row) => row.id === state.row);
    if (linked >= 0) state.first = linked - (linked % PAGE);
    const shown = rows.slice(state.first, state.first + PAGE);
    part("rows").replaceChildren(...shown.map((row) => summary(row, others.get(row.key))));
    if (linked >= 0) {
      const made = part("rows").children[linked - state.first];
      made.open = true;
      made.scrollIntoView();
      state.row = undefined;
    }
    const range = rows.length > PAGE ? `: ${count(state.first + 1)} to ${count(state.first + shown.length)}` : "";
    const left = mine.total - mine.rows.length;
    part("state").textContent = `${count(rows.length)} of ${count(mine.total)} rows${range}`
      + (left ? `; the last ${count(left)} are too many for this page` : "");
    const turn = (label, first) => button(label, false, () => {
      state.first = first;
      list(mine, theirs);
      part("show").scrollIntoView();
    });
    part("turn").replaceChildren(
      ...(state.first ? [turn("previous rows", state.first - PAGE)] : []),
      ...(state.first + PAGE < rows.length ? [turn("next rows", state.first + PAGE)] : []),
    );
  }

  const count = (n) => n.toLocaleString("en-US");
  const figure = (x) => (x === null || x === undefined ? "\u2013" : x.toFixed(3).replace("-", "\u2212"));

  function button(label, pressed, onclick) {
    const made = make("button", { type: "button", onclick }, label);
    made.setAttribute("aria-pressed", pressed);
    return made;
  }

  function mark(row) {
    if (!row) return make("span", { className: "verdict" }, "\u2013");
    return make("span", { className: row.right ? "verdict right" : "verdict wrong" }, row.right ? "right" : "wrong");
  }

  function summary(row, other) {
    const right = row.choices[row.answer];
    const own = (right ? row.own + right.lead + right.text : row.own).trim();
    const snippet = own.length > 110 ? `\u2026${own.slice(-110)}` : own;
    const marks = state.beside ? [mark(row), mark(other)] : [mark(row)];
    const head = make("summary", {}, ...marks, make("span", { className: "snippet", dir: "auto" }, snippet));
    const made = make("details", {}, head);
    made.addEventListener("toggle", () => {
      if (made.open && made.children.length === 1) made.append(detail(row, other));
      for (const prompt of made.querySelectorAll("pre")) prompt.scrollTop = prompt.scrollHeight;
    });
    return made;
  }

  function detail(row, other) {
    const blocks = [block(row, state.of.label)];
    if (other) blocks.push(block(other, state.beside.label, row));
    return make("div", { className: other ? "row halves" : "" }, ...blocks);
  }

  function block(row, label, first) {
    const same = first && first.examples + first.own === row.examples + row.own;
    const cut = row.cut ? "; too long for the model, which read only its end" : "";
    const examples = row.shots ? `with ${row.shots} example${row.shots === 1 ? "" : "s"}` : "without examples";
    const about = `, ${same ? "the same prompt" : `prompt ${examples}`}${cut}`;
    const words = new URLSearchParams({ task: state.task, of: state.of.name, with: state.beside?.name ?? "", row: row.id });
    const link = make("a", { href: `#${words}` }, `row ${row.id}`);
    const heading = make("p", { className: "about" }, make("strong", {}, label), make("br"), mark(row), link, about);
    const parts = [heading];
    if (!same) {
      const examplesShown = make("span", { className: "quiet" }, row.examples);
      parts.push(make("pre", { tabIndex: 0, dir: "auto" }, examplesShown, row.own));
    }
    return make("div", {}, ...parts, choices(row));
  }

  function choices(row) {
    const all = row.choices;
    const alone = all.some((choice) => choice.alone !== null);
    const head = ["choice", ...(all.length > 1 ? ["score"] : []), "log P", ...(alone ? ["log P alone"] : [])];
    const body = all.map((choice, n) => {
      const tags = [];
      if (n === row.answer) tags.push(make("span", { className: "tag right" }, "right answer"));
      if (n === row.chosen) tags.push(make("span", { className: n === row.answer ? "tag right" : "tag wrong" }, "chosen"));
      if (all.length === 1 && !row.right) tags.push(make("span", { className: "tag wrong" }, "not the likeliest text"));
      const lead = make("span", { className: "quiet" }, choice.lead);
      const text = make("td", { className: "said", dir: "auto" }, lead, choice.lead ? choice.text : choice.text.trimStart(), ...tags);
      const figures = [...(all.length > 1 ? [choice.score] : []), choice.logp, ...(alone ? [choice.alone] : [])];
      return make("tr", {}, text, ...figures.map((x) => make("td", { className: "n" }, figure(x))));
    });
    const names = head.map((name, n) => make("th", { scope: "col", className: n ? "n" : "" }, name));
    const top = make("thead", {}, make("tr", {}, ...names));
    return make("table", {}, top, make("tbody", {}, ...body));
  }

  // What the reader does, and links into the answers: #task=boolq&show=wrong
  function begin(given) {
    state = complete(given);
    part("browser").hidden = false;
    render();
  }

  function follow() {
    const words = new URLSearchParams(location.hash.slice(1));
    if (!words.has("task")) return false;
    begin(Object.fromEntries(words));
    document.getElementById("answers").scrollIntoView();
    return true;
  }

  function change(changes) {
    const kept = { task: state.task, of: state.of.name, with: state.beside?.name ?? "", find: state.find };
    begin({ ...kept, ...changes, chosen: true });
  }

  part("task").onchange = (event) => change({ task: event.target.value, of: undefined, with: undefined });
  part("of").onchange = (event) => change({ of: event.target.value });
  part("with").onchange = (event) => change({ with: event.target.value });
  part("find").oninput = (event) => change({ find: event.target.value, show: state.show });
  window.addEventListener("hashchange", follow);
  if (!follow()) begin({});
})();
