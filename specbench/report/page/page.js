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
  const methods = new Map(data.chart.map((row) => [row.method, row.color]));
  for (const [method, color] of methods.size > 1 ? methods : []) {
    const chip = made("button", method, "chip");
    chip.type = "button";
    chip.style.setProperty("--color", color);
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
