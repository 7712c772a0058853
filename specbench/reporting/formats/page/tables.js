// Tables that sort by a column, with the definition of each column as a tooltip.
function rank(text) {
  const found = text.replace("−", "-").match(/[-+]?\d+(\.\d+)?(e[-+]?\d+)?/);
  return found ? parseFloat(found[0]) : null;
}

function sortBy(table, column, head) {
  const body = table.tBodies[0], up = head.getAttribute("aria-sort") !== "ascending";
  const rows = [...body.rows].map((row) => [row, row.cells[column].textContent]);
  const numeric = column > 0 && rows.some(([, text]) => /^[-−+]?\d/.test(text));
  const sign = up ? 1 : -1;
  rows.sort(([, a], [, b]) => {
    if (!numeric) return sign * a.localeCompare(b);
    const [x, y] = [rank(a), rank(b)];
    return x === null || y === null ? (x === null) - (y === null) : sign * (x - y);  // rows without a value stay last
  });
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  body.append(...rows.map(([row]) => row));
}

function tables() {
  for (const shown of data.tables) {
    const table = made("table"), box = made("div", undefined, "scroll");
    if (shown.title) table.append(made("caption", shown.title));
    const heads = table.createTHead().insertRow();
    shown.heads.forEach((word, column) => {
      const head = made("th"), button = made("button", word || "·");
      button.addEventListener("click", () => sortBy(table, column, head));
      if (shown.tips[column]) explain(button, shown.tips[column]);
      head.scope = "col";
      head.classList.toggle("words", shown.texts[column]);
      head.append(button);
      heads.append(head);
    });
    const body = table.createTBody();
    const method = shown.heads.indexOf("method"), task = shown.heads.indexOf("task");
    for (const row of shown.rows) {
      const line = body.insertRow();
      row.forEach((word, column) => {
        const cell = line.insertCell();
        cell.textContent = word;
        cell.classList.toggle("words", shown.texts[column]);
      });
      listeners.push(() => {
        line.hidden = !isShown(shown.task || (task < 0 ? "" : row[task]), method < 0 ? "" : row[method]);
      });
    }
    listeners.push(() => { box.hidden = Boolean(filter.task && shown.task && shown.task !== filter.task); });
    box.append(table);
    byId("tables").append(box);
  }
}
