// Filters, the order of rows and the open entry, all of which stand in the address.
"use strict";

const all = (query, of = document) => [...of.querySelectorAll(query)];
const VERDICTS = ["wrong", "known", "right", "refused", ""]; // classes of marks, in their order
const matrix = document.getElementById("matrix"), form = document.querySelector(".controls");
const rows = all("tbody tr", matrix).map((node) => ({ node, ...JSON.parse(node.dataset.row) }));
let state = {};

function address(changes = {}) {
  const chosen = Object.entries({ ...state, ...changes }).filter(([, value]) => value);
  return `#${new URLSearchParams(chosen)}`;
}

function set(changes) {
  Object.assign(state, changes);
  if (location.protocol !== "about:") history.replaceState(null, "", address()); // a notebook's page has none
  if ("open" in changes) drawOpen(); else draw(); // the matrix keeps the focus, to which a dialog returns
}

function read() {
  state = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  for (const control of form.elements) control[control.type === "checkbox" ? "checked" : "value"] = state[control.name] ?? "";
  draw();
}

function draw() {
  const searches = (state.q ?? "").toLowerCase().split("|"), { framework, controls, workload = "", dtype = "" } = state;
  for (const { node, label, ...row } of rows) {
    const chosen = (!framework || row.backend === framework) && (!row.control || controls || rows.length === 1);
    node.hidden = !chosen || !searches.some((words) => words.split(" ").every((word) => row.text.includes(word)));
    for (const link of all("a", node)) link.href = link.getAttribute("href").split("#")[0] + address({ open: link.dataset.open });
    for (const mark of all(".mark", node)) {
      const cell = mark.parentNode, topic = cell.dataset.name, said = row.verdicts[topic][dtype] ?? "";
      const verdict = said.split(/[ :]/)[0];
      Object.assign(mark, { className: `mark ${verdict}`, hidden: !said, title: said, ariaLabel: `${label}, ${topic}: ${said}` });
      cell.dataset.key = VERDICTS.indexOf(verdict);
    }
    for (const speed of all("[data-name=speed]", node)) {
      const time = row.times[workload];
      speed.textContent = time ? `${time.toPrecision(3)}${workload ? " ms" : "×"}` : "";
      speed.dataset.key = time ?? Infinity;
    }
  }
  drawColumns();
  drawOpen();
}

function drawColumns() {
  matrix.tBodies[0].append(...rows.map(({ node }) => node));
  for (const head of matrix.tHead.rows[0].cells) {
    const cells = rows.map(({ node }) => node.cells[head.cellIndex]);
    const keys = cells.filter((cell) => !cell.parentNode.hidden).map((cell) => cell.dataset.key);
    const differing = new Set(keys.filter((key) => VERDICTS[key])).size;
    for (const cell of [head, ...cells]) cell.hidden = head.matches(".topic") && differing < (state.differs ? 2 : 1);
    head.ariaSort = null;
    if (head.textContent === state.sort) sort(head);
  }
  const shown = all("tbody tr:not([hidden])", matrix), operator = (row) => row?.querySelector("small").textContent;
  shown.forEach((row, n) => row.classList.toggle("group", operator(row) !== operator(shown[n - 1])));
  document.getElementById("count").textContent = rows.length > 1 ? `${shown.length} of ${rows.length} implementations` : "";
}

function drawOpen() {
  const [label, topic = "all"] = (state.open ?? "").split(" / "), { dtype = "" } = state;
  for (const dialog of all("dialog")) if (dialog.open !== (dialog.dataset.label === label)) dialog.open ? dialog.close() : dialog.showModal();
  for (const its of all("dialog[open], section.implementation")) {
    const { verdicts } = rows.find((row) => row.label === its.dataset.label);
    its.querySelector(".caption").textContent = `${topic}${dtype && ` in ${dtype}`}: ${verdicts[topic]?.[dtype] ?? "not tested"}`;
    for (const item of all("[data-topics]", its))
      item.hidden = !item.dataset.topics.split(",").includes(topic) || ![dtype, ""].includes(dtype && item.dataset.dtype);
  }
}

// Sort the rows of a table by one column: numbers by value, other texts by letters.
function sort(head, falling = false) {
  const key = ({ cells }) => cells[head.cellIndex].dataset.key ?? cells[head.cellIndex].textContent;
  const compare = (x, y) => Number.isNaN(x - y) ? x.localeCompare(y) : x - y;
  for (const other of head.parentNode.cells) other.ariaSort = other !== head ? null : falling ? "descending" : "ascending";
  const body = head.closest("table").tBodies[0];
  body.append(...[...body.rows].sort((x, y) => (falling ? -1 : 1) * compare(key(x), key(y))));
}

document.addEventListener("click", (event) => {
  const head = event.target.closest("thead th"), link = event.target.closest("a[data-open]");
  if (link?.getAttribute("href").startsWith("#")) {
    event.preventDefault();
    set({ open: link.dataset.open });
  } else if (head && matrix.contains(head)) set({ sort: state.sort === head.textContent ? "" : head.textContent });
  else if (head) sort(head, head.ariaSort === "ascending");
});
document.addEventListener("close", () => state.open && set({ open: "" }), true); // of a dialog
form.addEventListener("input", ({ target }) => set({ [target.name]: target.matches("[type=checkbox]:not(:checked)") ? "" : target.value }));
addEventListener("hashchange", read);
read();
