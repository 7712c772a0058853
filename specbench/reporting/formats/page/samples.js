// Samples: tokens colored by origin, a slider over rounds, and the baseline's output of the same prompt beside it.
const current = () => data.runs[byId("run").value];
const keyOf = (sample) => `${sample.s}${sample.r ? ` (repeat ${sample.r})` : ""}`;

function colored(sample, rounds) {
  const box = made("div", undefined, "text");
  if (!sample.k) { box.textContent = sample.t; return box; }
  const rejected = new Map(sample.x);
  const ends = [];
  for (const tokens of sample.o) ends.push((ends.at(-1) ?? 0) + tokens);
  const until = rounds >= ends.length ? Infinity : rounds ? ends[rounds - 1] : 0;
  sample.t.split(data.separator).forEach((piece, i) => {
    const later = i >= until;
    if (rejected.has(i) && !later) box.append(made("span", rejected.get(i), "rejected"));
    box.append(made("span", piece, later ? "later" : sample.k[i]));
  });
  return box;
}

function panel(sample, rounds) {
  const box = made("div"), accepted = [...sample.k].filter((letter) => letter === "a" || letter === "d").length;
  const score = sample.q === undefined ? "" : `, score ${(100 * sample.q).toFixed(1)}`;
  box.append(made("h3", sample.m));
  box.append(made("div", `${counted(sample.n, "token")}, ${accepted} of them drafted, ${counted(sample.o.length, "round")}, ${sample.ms} ms, ended by ${sample.f}${score}`, "meta"));
  box.append(colored(sample, rounds));
  return box;
}

function samplesShown() {
  const run = current(), key = byId("sample").value, method = byId("method").value;
  const wanted = run.samples.filter((each) => keyOf(each) === key);
  const shown = byId("shown");
  shown.replaceChildren();
  if (!wanted.length) return;
  const prompt = run.prompts[wanted[0].s] || {};
  if (prompt.prompt) {
    const details = made("details"), about = made("summary", "prompt");
    details.open = prompt.prompt.length < 400;
    details.append(about, made("div", prompt.prompt, "text"));
    shown.append(details);
  }
  if (prompt.reference) shown.append(made("h3", "reference"), made("div", prompt.reference, "text"));
  const rounds = Number(byId("round").value), pair = made("div", undefined, "pair");
  const own = wanted.find((each) => each.m === method), base = wanted.find((each) => each.m === run.baseline);
  if (own) pair.append(panel(own, rounds));
  if (base && base !== own) pair.append(panel(base, Infinity));
  shown.append(pair);
  const total = own ? own.o.length : 0;
  byId("position").textContent = rounds >= total ? `all ${total}` : `${rounds} of ${total}`;
}

function rewind() {
  const run = current(), key = byId("sample").value;
  const own = run.samples.find((each) => keyOf(each) === key && each.m === byId("method").value);
  byId("round").max = own ? own.o.length : 0;
  byId("round").value = byId("round").max;
  samplesShown();
}

function fill() {
  const run = current(), keys = [...new Set(run.samples.map(keyOf))];
  const methods = run.methods.filter((method) => !filter.off.has(method));
  const before = [byId("sample").value, byId("method").value];
  byId("sample").replaceChildren(...keys.map((key) => new Option(key, key)));
  byId("method").replaceChildren(...methods.map((method) => new Option(method, method)));
  if (keys.includes(before[0])) byId("sample").value = before[0];
  const first = methods.find((method) => method !== run.baseline) ?? methods[0] ?? "";
  byId("method").value = methods.includes(before[1]) ? before[1] : first;
  rewind();
}

function step(by) {
  const list = byId("sample");
  list.selectedIndex = Math.min(Math.max(list.selectedIndex + by, 0), list.options.length - 1);
  rewind();
}

function runsShown() {
  const list = byId("run"), before = list.value;
  const wanted = data.runs.map((run, i) => [run, i]).filter(([run]) => !filter.task || run.task === filter.task);
  list.replaceChildren(...wanted.map(([run, i]) => new Option(run.name, i)));
  if (wanted.some(([, i]) => String(i) === before)) list.value = before;
  if (wanted.length) fill();
}

function browser() {
  if (!data.runs.some((run) => run.samples.length)) { byId("browser").remove(); return; }
  byId("run").addEventListener("change", fill);
  byId("sample").addEventListener("change", rewind);
  byId("method").addEventListener("change", rewind);
  byId("round").addEventListener("input", samplesShown);
  byId("previous").addEventListener("click", () => step(-1));
  byId("next").addEventListener("click", () => step(1));
  listeners.push(runsShown);
}
