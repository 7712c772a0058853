// The page, in the order of its sections.
if (data.verdict.length) byId("verdict").append(...data.verdict.map((sentence) => made("p", sentence)));
else byId("verdict").remove();
controls();
listeners.push(chart);
browser();
tables();
for (const image of data.images) {
  const figure = made("figure"), picture = made("img");
  picture.src = image.source;
  picture.alt = image.name;
  figure.append(picture);
  byId("plots").append(figure);
}
if (!data.images.length) byId("pictures").remove();
for (const note of data.notes) byId("notes").append(made("li", note.replace(/^! /, ""), note.startsWith("!") ? "warn" : ""));
if (data.leftOut) byId("notes").append(made("li", `The sample browser leaves out ${counted(data.leftOut, "generation")}.`));
for (const { name, text } of data.conditions) {
  const details = made("details");
  details.append(made("summary", name), made("pre", text));
  byId("conditions").append(details);
}
addEventListener("resize", chart);
refresh();
