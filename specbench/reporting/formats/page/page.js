"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

// Every text is set as text, never as markup.
function made(tag, text, name) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (name) node.className = name;
  return node;
}

function drawn(tag, attributes, text) {
  const node = document.createElementNS(byId("blank").namespaceURI, tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

// Tooltips, on hover and on keyboard focus.
function explain(node, text) {
  const tip = byId("tip");
  const show = () => {
    const box = node.getBoundingClientRect();
    tip.textContent = text;
    tip.hidden = false;
    tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 8)) + scrollX}px`;
    tip.style.top = `${box.bottom + 6 + scrollY}px`;
  };
  const hide = () => { tip.hidden = true; };
  node.dataset.tip = "";
  node.addEventListener("mouseenter", show);
  node.addEventListener("mouseleave", hide);
  node.addEventListener("focus", show);
  node.addEventListener("blur", hide);
}

// The markers of plots, by matplotlib's names, around the origin.
const SHAPES = {
  o: "M-5.5 0a5.5 5.5 0 1 0 11 0a5.5 5.5 0 1 0-11 0z", s: "M-5-5H5V5H-5z", "^": "M0-6L6 5H-6z", v: "M0 6L6-5H-6z",
  "<": "M-6 0L5-6V6z", ">": "M6 0L-5-6V6z", D: "M0-6.5L6.5 0L0 6.5L-6.5 0z", d: "M0-6.5L4 0L0 6.5L-4 0z",
  P: "M-2-6H2V-2H6V2H2V6H-2V2H-6V-2H-2z", X: "M-6-3.2L-3.2-6L0-2.8L3.2-6L6-3.2L2.8 0L6 3.2L3.2 6L0 2.8L-3.2 6L-6 3.2L-2.8 0z",
  "*": "M0-6.5L1.6-2.2L6.2-2L2.6.8L3.8 5.3L0 2.7L-3.8 5.3L-2.6.8L-6.2-2L-1.6-2.2z",
};

// Filters: one task or all, and the methods that are switched on.
const filter = { task: "", off: new Set() };
const isShown = (task, method) => (!filter.task || !task || task === filter.task) && !filter.off.has(method);
const listeners = [];
const refresh = () => listeners.forEach((listener) => listener());

function controls() {
  const place = byId("controls"), tasks = [...new Set(data.chart.map((row) => row.task))];
  if (tasks.length > 1) {
    const label = made("label", "task "), select = made("select");
    select.id = "task";
    select.append(new Option("all", ""), ...tasks.map((task) => new Option(task, task)));
    select.addEventListener("change", () => { filter.task = select.value; refresh(); });
    label.append(select);
    place.append(label);
  }
  const methods = new Map(data.chart.map((row) => [row.method, row]));
  for (const [method, row] of methods.size > 1 ? methods : []) {
    const chip = made("button", undefined, "chip"), icon = drawn("svg", { viewBox: "-7 -7 14 14", "aria-hidden": "true" });
    icon.append(drawn("path", { d: SHAPES[row.marker], fill: row.color }));
    chip.append(icon, method);
    chip.type = "button";
    chip.setAttribute("aria-pressed", "true");
    chip.addEventListener("click", () => {
      if (!filter.off.delete(method)) filter.off.add(method);
      chip.setAttribute("aria-pressed", String(!filter.off.has(method)));
      refresh();
    });
    place.append(chip);
  }
}

// Light and dark. Plots have a picture for each.
const preference = matchMedia("(prefers-color-scheme: dark)"), painters = [];
const repaint = () => painters.forEach((paint) => paint());
function isDark() {
  const theme = document.documentElement.dataset.theme;
  return theme ? theme === "dark" : preference.matches;
}
byId("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  repaint();
});
preference.addEventListener("change", repaint);

function counted(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}
