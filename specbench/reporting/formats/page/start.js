// The page, in the order of its sections.
byId("about").textContent = data.about;
for (const [place, lines] of [["methods", data.methods], ["warnings", data.warnings], ["notes", data.notes]])
  byId(place).append(...lines.map((line) => made("li", line)));
if (!data.warnings.length) byId("warnings").remove();
if (data.verdict.length) byId("verdict").append(...data.verdict.map((sentence) => made("p", sentence)));
else byId("verdict").remove();
controls();
listeners.push(chart);
browser();
tables();
for (const image of data.images) {
  const figure = made("figure"), picture = made("img");
  const paint = () => { picture.src = isDark() ? image.dark : image.source; };
  painters.push(paint);
  paint();
  picture.alt = image.name;
  figure.append(picture);
  byId("plots").append(figure);
}
if (!data.images.length) byId("pictures").remove();
if (data.leftOut) byId("notes").append(made("li", `The sample browser leaves out ${counted(data.leftOut, "generation")}.`));
for (const { name, text } of data.conditions) {
  const details = made("details");
  details.append(made("summary", name), made("pre", text));
  byId("conditions").append(details);
}
addEventListener("resize", chart);
refresh();
