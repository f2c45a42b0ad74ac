// Filters, the order of rows and the open entry, all of which stand in the address.
"use strict";

const all = (query, of = document) => [...of.querySelectorAll(query)];
const VERDICTS = ["wrong", "known", "right", "refused", ""]; // classes of marks, in their order
const matrix = document.getElementById("matrix"), form = document.querySelector(".controls");
const rows = all("tbody tr", matrix).map((node) => ({ node, ...JSON.parse(node.dataset.row) }));
const inNotebook = location.protocol === "about:"; // such a page has no address of its own
let state = {};

function address(changes = {}) {
  const kept = Object.entries({ ...state, ...changes }).filter(([, value]) => value);
  return `#${new URLSearchParams(kept)}`;
}

function set(changes) {
  state = { ...state, ...changes };
  if (!inNotebook) history.replaceState(null, "", address());
  if ("open" in changes) drawOpen(); else draw(); // the matrix keeps the focus, to which a dialog returns
}

function read() {
  state = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  for (const control of form.elements)
    if (control.type === "checkbox") control.checked = Boolean(state[control.name]);
    else control.value = state[control.name] ?? "";
  draw();
}

function draw() {
  const words = (state.q ?? "").toLowerCase().split(/\s+/), dtype = state.dtype ?? "";
  for (const { node, ...row } of rows) {
    const others = (state.framework && row.backend !== state.framework) || (row.control && !state.controls && rows.length > 1);
    node.hidden = others || !words.every((word) => row.text.includes(word));
    for (const link of all("a", node)) {
      link.href = link.getAttribute("href").split("#")[0] + address({ open: link.dataset.open });
      const topic = link.parentNode.dataset.name, said = row.verdicts[topic]?.[dtype] ?? "";
      if (!topic) continue;
      const verdict = said.split(/[ :]/)[0];
      link.className = `mark ${verdict}`;
      link.hidden = !said;
      link.title = said;
      link.ariaLabel = `${link.dataset.open.replace(" / ", ", ")}: ${said}`;
      link.parentNode.dataset.key = VERDICTS.indexOf(verdict);
    }
    const speed = node.querySelector("[data-name=speed]"), time = state.workload ? row.times[state.workload] : row.slowness;
    if (speed) speed.textContent = time ? `${time.toPrecision(3)}${state.workload ? " ms" : "×"}` : "";
    for (const cell of all("td", node)) cell.dataset.key ??= row.keys[cell.dataset.name] ?? Infinity;
    if (speed) speed.dataset.key = time ?? Infinity;
  }
  drawColumns();
  drawOpen();
  drawComparison();
}

function drawColumns() {
  matrix.tBodies[0].append(...rows.map(({ node }) => node));
  const shown = rows.filter(({ node }) => !node.hidden).map(({ node }) => node);
  for (const head of matrix.tHead.rows[0].cells) {
    const cells = rows.map(({ node }) => node.cells[head.cellIndex]), of = shown.map((node) => node.cells[head.cellIndex]);
    const verdicts = new Set(of.map((cell) => cell.dataset.key).filter((key) => VERDICTS[key]));
    const hidden = head.matches(".topic") && verdicts.size < (state.differs ? 2 : 1);
    for (const cell of [head, ...cells]) cell.hidden = hidden;
    head.removeAttribute("aria-sort");
    if (head.textContent === state.sort) sort(head);
  }
  all("tbody tr:not([hidden])", matrix).reduce((above, row) => {
    row.classList.toggle("group", row.querySelector("small").textContent !== above);
    return row.querySelector("small").textContent;
  }, "");
  document.getElementById("count").textContent = rows.length > 1 ? `${shown.length} of ${rows.length} implementations` : "";
}

function drawOpen() {
  const [label, topic = "all"] = (state.open ?? "").split(" / "), dtype = state.dtype ?? "";
  for (const its of all(".implementation")) {
    const asked = its.dataset.label === label;
    if (its.showModal && its.open !== asked) asked ? its.showModal() : its.close();
    if (its.showModal && !asked) continue;
    const row = rows.find((one) => one.label === its.dataset.label);
    its.querySelector(".caption").textContent = `${topic}${dtype && ` in ${dtype}`}: ${row.verdicts[topic]?.[dtype] ?? "not asked"}`;
    for (const item of all("[data-topics]", its))
      item.hidden = !item.dataset.topics.split(",").includes(topic) || (dtype && ![dtype, ""].includes(item.dataset.dtype));
  }
}

function drawComparison() {
  const place = document.getElementById("comparison"), labels = [state.a, state.b];
  const [left, right] = labels.map((label) => new Map(all(".implementation").filter((its) => its.dataset.label === label)
    .flatMap((its) => all("table", its)).map((table) => [table.caption.textContent, table])));
  const texts = (table) => new Map([...table?.rows ?? []].map(({ cells: [name, ...values] }) => [name.textContent, values.map((x) => x.textContent).join(", ")]));
  place.replaceChildren();
  for (const caption of left.size && right.size ? new Set([...left.keys(), ...right.keys()]) : []) {
    const [a, b] = [texts(left.get(caption)), texts(right.get(caption))];
    const names = [...new Set([...a.keys(), ...b.keys()])].filter((name) => a.get(name) !== b.get(name));
    if (!names.length) continue;
    const table = place.appendChild(document.createElement("table"));
    table.createCaption().textContent = caption;
    for (const entries of [["", ...labels], ...names.map((name) => [name, a.get(name) ?? "-", b.get(name) ?? "-"])]) {
      const row = table.insertRow();
      for (const text of entries) row.insertCell().textContent = text;
    }
  }
}

// Sort the rows of a table by one column: numbers by value, other texts by letters.
function sort(head, falling = false) {
  const key = ({ cells }) => cells[head.cellIndex].dataset.key ?? cells[head.cellIndex].textContent;
  const compare = (x, y) => Number.isNaN(x - y) ? x.localeCompare(y) : x - y;
  for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
  head.ariaSort = falling ? "descending" : "ascending";
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
form.addEventListener("input", ({ target }) => set({ [target.name]: target.type === "checkbox" ? (target.checked ? "1" : "") : target.value }));
form.addEventListener("submit", (event) => event.preventDefault());
addEventListener("hashchange", read);
read();
