// The first screen of a page: the matrix, its filters, and what an entry opens. All data stand in the
// script element "data" (suite/report/overview.py). Texts enter the page as text nodes only.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const VERDICTS = {
  wrong: ["✕", "wrong"], known: ["▲", "known wrong"], right: ["●", "right"],
  refused: ["○", "refused"], absent: ["", "not asked"],
};
const START = { q: "", framework: "", dtype: "", workload: "", differs: "", controls: "", sort: "", open: "", a: "", b: "" };
const state = { ...START, ...Object.fromEntries(new URLSearchParams(location.hash.slice(1))) };
const FAILURES_AT_ONCE = 20;
const place = (id) => document.getElementById(id);

function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties))
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && (value !== "" || name === "value")) node.setAttribute(name, value === true ? "" : value);
  node.append(...children.filter((child) => child !== null && child !== ""));
  return node;
}

// ---------------------------------------------------------------- the data

const counts = new Map(); // "row topic" -> [[dtype, pass, fail, known, unsupported, worst passing cell], ...]
for (const [row, topic, ...rest] of data.counts) {
  const key = `${row} ${topic}`;
  counts.set(key, [...(counts.get(key) ?? []), rest]);
}

function tally(row, topic, dtype = state.dtype) {
  const total = { pass: 0, fail: 0, known: 0, unsupported: 0 };
  for (const [its, pass, fail, known, unsupported] of counts.get(`${row} ${topic}`) ?? [])
    if (!dtype || its === dtype) {
      total.pass += pass; total.fail += fail; total.known += known; total.unsupported += unsupported;
    }
  return total;
}

function verdict({ pass, fail, known, unsupported }) {
  if (fail) return "wrong";
  if (known) return "known";
  return pass ? "right" : unsupported ? "refused" : "absent";
}

const judged = ({ pass, fail, known }) => pass + fail + known;
const said = (total) => VERDICTS[verdict(total)][1] + (judged(total) ? `: ${total.pass} of ${judged(total)} judged cells pass`
  : total.unsupported ? `: ${total.unsupported} cells` : "");

const grade = (row, dtype) => row.precision[dtype]?.[0];

const answers = (row) => Object.entries(row.elections).map(([question, answer]) => `${question}=${answer}`);
const workloads = [...new Set(data.rows.flatMap((row) => Object.keys(row.times)))];

function slowness(row) { // ms of the chosen workload, or the median over workloads of time / best time
  if (state.workload) return row.times[state.workload]?.[1] ?? null;
  const ratios = Object.entries(row.times).map(([what, [, middle]]) =>
    middle / Math.min(...data.rows.filter((r) => what in r.times).map((r) => r.times[what][1])));
  return ratios.length ? ratios.sort((x, y) => x - y)[ratios.length >> 1] : null;
}

function shown() {
  const words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = data.rows.map((row, number) => ({ ...row, number })).filter((row) =>
    (!state.framework || row.backend === state.framework) && (state.controls || !row.control || data.rows.length === 1) &&
    words.every((word) => `${row.label} ${row.operator} ${answers(row).join(" ")}`.toLowerCase().includes(word)));
  const topic = data.topics.findIndex(({ name }) => name === state.sort);
  const order = Object.keys(VERDICTS);
  if (topic >= 0)
    rows.sort((x, y) => order.indexOf(verdict(tally(x.number, topic))) - order.indexOf(verdict(tally(y.number, topic))));
  if (data.dtypes.includes(state.sort))
    rows.sort((x, y) => Number(x.precision[state.sort]?.[2] ?? Infinity) - Number(y.precision[state.sort]?.[2] ?? Infinity));
  if (state.sort === "speed") rows.sort((x, y) => (slowness(x) ?? Infinity) - (slowness(y) ?? Infinity));
  return rows;
}

function topicsOf(rows) {
  return data.topics.map(({ name, text }, number) => ({ name, text, number })).filter(({ number }) => {
    const verdicts = new Set(rows.map((row) => verdict(tally(row.number, number))));
    verdicts.delete("absent");
    return state.differs ? verdicts.size > 1 : verdicts.size > 0;
  });
}

// ---------------------------------------------------------------- the matrix

function set(changes) {
  Object.assign(state, changes);
  const kept = Object.entries(state).filter(([name, value]) => value && name in START);
  if (location.protocol !== "about:") // a page inside a notebook has no address of its own
    history.replaceState(null, "", `#${new URLSearchParams(kept)}`);
  if ("open" in changes) drawDetails(); else draw(); // the matrix keeps the focus, to which a dialog returns
}

function draw() {
  const rows = shown(), topics = topicsOf(rows), timed = workloads.length, unit = state.workload ? " ms" : "×";
  const head = (name, text) => el("th", { scope: "col", "aria-sort": state.sort === name ? "ascending" : false },
    el("button", { title: `${text}; sort`, onclick: () => set({ sort: state.sort === name ? "" : name }) }, name));
  place("matrix").replaceChildren(
    el("thead", {}, el("tr", {},
      el("th", { scope: "col", class: "name" }, "implementation"),
      ...topics.map(({ name, text }) => head(name, text)),
      ...data.dtypes.map((name) => head(name, `precision grade in ${name}`)),
      timed ? head("speed", state.workload ? `median time of a call in ${state.workload}` : "median of time / best time, over the workloads") : null)),
    el("tbody", {}, ...rows.map((row, n) => el("tr", { class: rows[n - 1]?.operator === row.operator ? "" : "group" },
      el("th", { scope: "row", class: "name" },
        opening(row, row.label, {}, row.label), el("small", {}, row.operator)),
      ...topics.map((topic) => entry(row, topic)),
      ...data.dtypes.map((name) => el("td", { "data-name": name, class: `grade ${grade(row, name) === "none" ? "beyond" : ""}` }, grade(row, name) ?? "")),
      timed ? el("td", { "data-name": "speed", class: "grade" }, slowness(row) === null ? "" : `${slowness(row).toPrecision(3)}${unit}`) : null))));
  place("count").textContent = data.rows.length > 1 ? `${rows.length} of ${data.rows.length} implementations` : "";
  drawDetails();
  drawComparison();
}

function entry(row, topic) {
  const total = tally(row.number, topic.number), name = verdict(total), [shape, word] = VERDICTS[name];
  if (name === "absent") return el("td", { "data-name": topic.name, class: "absent" });
  const texts = { class: `mark ${name}`, title: said(total), "aria-label": `${row.label}, ${topic.name}: ${said(total)}` };
  return el("td", { "data-name": topic.name }, opening(row, `${row.label} / ${topic.name}`, texts, shape));
}

function opening(row, open, properties, text) { // in a site an entry opens on the page of its implementation
  return row.page
    ? el("a", { ...properties, href: `${row.page}${open === row.label ? "" : `#${new URLSearchParams({ open, dtype: state.dtype })}`}` }, text)
    : el("button", { ...properties, onclick: () => set({ open }) }, text);
}

// ---------------------------------------------------------------- what an entry opens

function table(caption, head, rows) {
  return rows.length ? el("div", { class: "scroll", tabindex: "0" }, el("table", {}, el("caption", {}, caption),
    el("thead", {}, el("tr", {}, ...head.map((text) => el("th", { scope: "col" }, text)))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((x) => el("td", {}, x ?? ""))))))) : "";
}

function copied(text) {
  const button = el("button", { class: "copy", onclick: async () => {
    try { await navigator.clipboard.writeText(text); } catch { // no permission: an old way
      const area = el("textarea", {}); area.value = text; place("details").append(area); area.select();
      document.execCommand("copy"); area.remove();
    }
    button.textContent = "copied";
  } }, "copy");
  return el("div", { class: "code" }, el("pre", { tabindex: "0" }, text), button);
}

function linked(text) {
  return /^https:\/\/\S+$/.test(text) ? el("a", { href: text, rel: "noreferrer" }, text) : text;
}

// A cell [command, check, case, error ratio, absolute error] as its summary, and below that what asks it again.
function opened(row, status, text, [command, check, its, ratio, error], summary, ...details) {
  const test = `${check}[${data.rows[row].name}/${its}]`.replaceAll("'", `'"'"'`);
  const named = [`${check} `, el("code", {}, its), ratio === null ? "" : ` ${ratio}× its bound`, error === null ? "" : `, |error| ${error}`];
  return el("details", { class: "failure" },
    el("summary", {}, el("span", { class: `is-${status}` }, text), " ", ...(summary ? [summary] : named)),
    ...(summary ? [el("p", {}, ...named)] : []), ...details, copied(`${data.commands[command]} -k '${test}'`));
}

function failure(one) {
  const found = data.findings[one.finding];
  return opened(one.row, one.status, one.status, one.cell, "",
    el("p", {}, one.message), one.cause ? el("p", {}, `Cause: ${one.cause}. `, linked(one.issue)) : "",
    found ? el("div", {}, el("p", {}, `Finding (${found.severity}; upstream: ${found.state}): ${found.title}. `, linked(found.issue)), copied(found.reproduction)) : "");
}

function failures(row, topic) {
  const mine = data.failures.filter((f) => f.row === row && f.topics.includes(topic) && (!state.dtype || f.dtype === state.dtype));
  const list = el("div", {}, ...mine.slice(0, FAILURES_AT_ONCE).map(failure)), rest = mine.slice(FAILURES_AT_ONCE);
  const more = el("button", { onclick: () => { list.append(...rest.map(failure)); more.remove(); } }, `${rest.length} more`);
  return mine.length ? el("section", {}, el("h3", {}, `${mine.length} failing cells`), list, rest.length ? more : "") : "";
}

function drawDetails() {
  const dialog = place("details"), [label, name] = state.open.split(" / ");
  const row = data.rows.findIndex((r) => r.label === label);
  const topic = Math.max(0, data.topics.findIndex((t) => t.name === name));
  if (row < 0) { if (dialog.open) dialog.close(); return; }
  const its = data.rows[row], overall = !name;
  const numbers = (counts.get(`${row} ${topic}`) ?? []).filter(([dtype]) => !state.dtype || dtype === state.dtype);
  const worst = numbers.filter(([, , , , , cell]) => cell);
  const reasons = data.reasons[`${row} ${topic}`] ?? [];
  dialog.replaceChildren(
    el("form", { method: "dialog" }, el("button", { "aria-label": "close", class: "close" }, "×")),
    el("h2", {}, name ? `${label}: ${name}` : label),
    el("p", { class: "caption" }, `${data.topics[topic].text}; ${said(tally(row, topic))}`),
    table("cells by dtype", ["dtype", "pass", "fail", "known", "unsupported", "precision grade"],
      numbers.map(([dtype, ...tallies]) => [dtype, ...tallies.slice(0, 4), grade(its, dtype)])),
    failures(row, topic),
    worst.length ? el("section", {}, el("h3", {}, "the largest error of a right cell, by dtype"),
      ...worst.map(([dtype, , , , , cell]) => opened(row, "pass", dtype, cell))) : "",
    reasons.length ? el("section", {}, el("h3", {}, "refused, by reason"),
      ...reasons.map(([reason, number, cell]) => opened(row, "unsupported", `${number} cells`, cell, reason))) : "",
    overall ? table("by topic", ["topic", "verdict"], data.topics.map((t, n) => [t.name, said(tally(row, n))]).filter((_, n) => verdict(tally(row, n)) !== "absent")) : "",
    overall ? table("what it computes, measured by probes", ["what", "measured"], Object.entries(its.computes)) : "",
    overall ? table("what the implementation chooses where the field has no single answer", ["question", "answer"], Object.entries(its.elections)) : "",
    overall ? table("time of a call, ms", ["workload", "first quartile", "median", "third quartile"], Object.entries(its.times).map(([what, q]) => [what, ...q])) : "");
  if (!dialog.open) dialog.showModal();
}

// ---------------------------------------------------------------- A beside B

function drawComparison() {
  const [a, b] = [state.a, state.b].map((label) => data.rows.findIndex((r) => r.label === label));
  if (a < 0 || b < 0) { place("comparison").replaceChildren(); return; }
  const [left, right] = [data.rows[a], data.rows[b]];
  const differing = (names, of) => names.map((n) => [n, of(left, n), of(right, n)]).filter(([, x, y]) => x !== y);
  const names = (key) => [...new Set([...Object.keys(left[key]), ...Object.keys(right[key])])];
  const precisely = (row, dtype) => ["", "median ", "largest ", "rms "].map((name, n) => [name, row.precision[dtype]?.[n] ?? ""])
    .filter(([, number]) => number !== "").map((parts) => parts.join("")).join(", ") || "not measured";
  const topics = data.topics.map((t, n) => [t.name, said(tally(a, n)), said(tally(b, n)), verdict(tally(a, n)) !== verdict(tally(b, n))]);
  const computes = names("computes").filter((n) => !(n in left.elections || n in right.elections));
  const times = names("times").filter((n) => n in left.times && n in right.times);
  const head = (first) => [first, left.label, right.label];
  place("comparison").replaceChildren(
    el("h2", {}, `${left.label} beside ${right.label}`),
    table("verdicts that differ", head("topic"), topics.filter((t) => t[3]).map((t) => t.slice(0, 3))),
    table("what they compute otherwise", head("what"), differing(computes, (r, n) => r.computes[n] ?? "not read")),
    table("answers that differ", head("question"), differing(names("elections"), (r, n) => r.elections[n] ?? r.computes[n] ?? "not asked")),
    table("precision of outputs: grade, and error ratios", head("dtype"),
      differing(names("precision"), precisely)),
    table("error ratios of gradients: the largest of each operand", head("operand"), differing(names("gradients"), (r, n) => r.gradients[n] ?? "not asked")),
    table("median time of a call, ms", head("workload"), times.map((n) => [n, left.times[n][1], right.times[n][1]])));
}

// ---------------------------------------------------------------- the tables below

// A click on the head of a column sorts its table: numbers by value, other texts by letters; twice: backwards.
function sortable(head) {
  const column = head.cellIndex, body = head.closest("table").tBodies[0], text = head.textContent;
  const key = (row) => row.cells[column].textContent;
  const compare = (x, y) => Number.isNaN(x - y) ? x.localeCompare(y) : x - y;
  head.replaceChildren(el("button", { title: `sort by ${text}`, onclick: () => {
    const falling = head.ariaSort === "ascending";
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.ariaSort = falling ? "descending" : "ascending";
    const rows = [...body.rows].sort((x, y) => (falling ? -1 : 1) * compare(key(x), key(y)));
    body.append(...rows);
  } }, text));
}

// ---------------------------------------------------------------- controls

function options(id, values, first) {
  place(id).replaceChildren(el("option", { value: "" }, first), ...values.map((value) => el("option", { value }, value)));
  place(id).value = state[id];
  place(id).addEventListener("change", (event) => set({ [id]: event.target.value }));
}

options("framework", [...new Set(data.rows.map((row) => row.backend))], "every framework");
options("dtype", data.dtypes, "every dtype");
options("workload", workloads, "every workload");
place("workload").parentNode.hidden = !workloads.length;
place("answers").replaceChildren(...[...new Set(data.rows.flatMap(answers))].sort().map((value) => el("option", { value })));
for (const id of ["a", "b"]) options(id, data.rows.map((row) => row.label), "–");
for (const id of ["differs", "controls"]) {
  place(id).checked = Boolean(state[id]);
  place(id).addEventListener("change", (event) => set({ [id]: event.target.checked ? "1" : "" }));
}
document.addEventListener("DOMContentLoaded", () => document.querySelectorAll(".tables thead th").forEach(sortable));
place("q").value = state.q;
place("q").addEventListener("input", (event) => set({ q: event.target.value }));
place("workload").addEventListener("change", () => set({ sort: state.workload ? "speed" : "" }));
place("details").addEventListener("close", () => state.open && set({ open: "" }));
draw();
