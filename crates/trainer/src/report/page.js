// The page: its sections from the data, and, where `megatrain watch` serves it, the lines that came since.

const main = document.getElementById("main");
const parts = {};
let data = JSON.parse(document.getElementById("data").textContent);

const bytes = (n) => {
  if (n < 1024) return n + " B";
  const power = Math.min(Math.floor(Math.log2(n) / 10), 5);
  return (n / 1024 ** power).toFixed(2) + " " + ["B", "KiB", "MiB", "GiB", "TiB", "PiB"][power];
};
const whole = (n) => Math.round(n).toLocaleString("en-US");
const percent = (x) => (100 * x).toFixed(x < 0.0995 ? 1 : 0) + "%";
const clock = (s) => {
  const t = Math.max(0, Math.round(s));
  const two = (n) => String(n).padStart(2, "0");
  return t < 60 ? `${t} s` : t < 3600 ? `${Math.floor(t / 60)} min ${two(t % 60)} s` : `${Math.floor(t / 3600)} h ${two(Math.floor(t / 60) % 60)} min`;
};
const last = (list) => list[list.length - 1];

function section(title, node) {
  main.append(el("section", {}, title ? el("h2", {}, title) : null, node));
  return node;
}

// A table of rows of cells; the first cell of a row heads it. A cell is a text, or { bar, class } for a share from 0 to 1.
function table(caption, head, rows, kind) {
  const cell = (content, i) => {
    if (i === 0) return el("th", { scope: "row" }, content);
    if (content && content.bar !== undefined) {
      const bar = el("div", { class: content.class });
      bar.style.width = (100 * Math.max(0, Math.min(1, content.bar))).toFixed(1) + "%";
      return el("td", { class: "bar" }, bar);
    }
    return el("td", { class: head || kind === "bars" ? "number" : null }, content);
  };
  return el("table", { class: kind },
    caption ? el("caption", {}, caption) : null,
    head ? el("thead", {}, el("tr", {}, head.map((text, i) => el("th", { scope: "col", class: i && text ? "number" : null }, text)))) : null,
    el("tbody", {}, rows.map((row) => el("tr", { class: row.total ? "total" : null }, (row.cells || row).map(cell)))));
}

function build() {
  main.replaceChildren();
  cursor.charts = [];
  parts.progress = el("div");
  main.append(el("div", { class: "progress", role: "progressbar", "aria-label": "steps done", "aria-valuemin": "0", "aria-valuemax": "100" }, parts.progress));
  parts.tiles = section(null, el("div", { class: "tiles" }));
  const curves = section("Curves", el("div", { class: "grid" }));
  parts.loss = new Chart(curves, "Loss", { height: 260, logarithmic: true, wide: true });
  parts.norm = new Chart(curves, "Gradient norm", { logarithmic: true });
  parts.lr = new Chart(curves, "Learning rate", { zero: true });
  parts.tokens = new Chart(curves, "Tokens a second", { zero: true });
  parts.tflops = new Chart(curves, "Model TFLOP/s", { zero: true });
  parts.skips = section(null, el("div", { class: "stack" }));
  const streams = section("Streams", el("div", { class: "pair" }));
  parts.streams = streams;
  parts.lanes = el("div", { class: "card wide" });
  streams.append(parts.lanes);
  parts.memory = section("Memory", el("div", { class: "pair" }));
  parts.data = section("Data", el("div", { class: "pair" }));
  parts.samples = section("Samples", el("div", { class: "card scroll", tabindex: "0", role: "region", "aria-label": "samples" }));
  parts.run = section("Run", el("div", { class: "pair" }));
  facts();
}

// What does not change while the run goes on, or only with the page.
function facts() {
  const { memory, data: d, about, options, limit } = data.facts;
  const groups = (title, list, used, apart, all) => {
    const total = list.reduce((sum, group) => sum + group.bytes, 0);
    const most = Math.max(total, used || 0, 1);
    const rows = list.map((group) => [group.name, group.regions ? whole(group.regions) : "", bytes(group.bytes), { bar: group.bytes / most }]);
    rows.push({ total: true, cells: ["planned", whole(list.reduce((sum, group) => sum + group.regions, 0)), bytes(total), { bar: total / most }] });
    if (used !== null && used !== undefined) {
      rows.push({ total: true, cells: [`used ${apart}`, "", bytes(used), { bar: used / most, class: all && used > total * 1.02 ? "more" : "used" }] });
    }
    return el("div", { class: "card" }, table(title, ["group", "regions", "size", ""], rows, "bars"));
  };
  parts.memory.replaceChildren(
    groups("Host memory", memory.host, memory.host_used_bytes, "(largest resident set)", true),
    groups(memory.device_is_apart ? "Device heap" : "Device heap, here a part of host memory", memory.device, memory.device_used_bytes, "(with driver and kernels)", false));

  const numbers = [["documents", whole(d.documents)], ["tokens", whole(d.tokens)],
    ["targets", `${whole(d.targets)} (${percent(d.targets / Math.max(d.tokens, 1))} of tokens)`], ["longest document", `${whole(d.longest)} tokens`]];
  if (d.partial) numbers.unshift(["so far, from a stream", ""]);
  if (d.held_out) numbers.push(["held out for evaluation", `${whole(d.held_out)} documents`]);
  numbers.push(["truncated", whole(d.truncated)]);
  const skipped = Object.entries(d.skipped);
  numbers.push(["skipped", whole(skipped.reduce((sum, [, count]) => sum + count, 0))]);
  for (const [reason, count] of skipped) numbers.push([`– ${reason}`, whole(count)]);
  d.files.forEach((file, i) => numbers.push([i ? "" : "files", file]));
  const most = Math.max(...d.lengths, 1);
  const lengths = d.lengths.map((count, i) => [i ? `${whole(2 ** (i - 1) + 1)} – ${whole(2 ** i)}` : "1", whole(count), { bar: count / most }]);
  const begin = d.lengths.findIndex((count) => count);
  parts.data.replaceChildren(
    el("div", { class: "card" }, table("What is trained on", null, numbers)),
    el("div", { class: "card" }, table("Documents by length", ["tokens", "documents", ""], lengths.slice(Math.max(begin, 0)), "bars")));

  const told = Object.entries(options).map(([key, value]) => [key, Array.isArray(value) ? value.join(", ") : String(value)]);
  const known = limit ? [...about, ["Limit", `${figure(limit.tflops)} TFLOP/s (${limit.what})`]] : about;
  parts.run.replaceChildren(
    el("div", { class: "card" }, table("Model and machine", null, known)),
    el("div", { class: "card" }, told.length ? table("Options given", null, told) : el("p", { class: "muted" }, "No options were given: everything is at its default.")));

  if (data.timeline) {
    if (!parts.timeline) {
      const box = el("div", { class: "wide" });
      parts.streams.prepend(box);
      parts.timeline = new StreamTimeline(box);
    }
    parts.timeline.set(data.timeline);
  } else if (parts.timeline) {
    // Another run, in which nothing is traced.
    parts.streams.firstChild.remove();
    parts.timeline = null;
  }
  const lanes = data.lanes.map(({ name, share }) => [name, percent(share), { bar: share }]);
  parts.lanes.replaceChildren(lanes.length
    ? table("Busy share of each lane, over all steps but the first", ["lane", "busy", ""], lanes, "bars")
    : el("p", { class: "muted" }, "The busy share of each lane is known after the second step."));
  if (!data.timeline) parts.lanes.append(el("p", { class: "muted" }, "Train with --trace FILE to see every command of the last step here."));
}

function tile(label, value, note) {
  return el("div", { class: "card tile" }, el("div", { class: "label" }, label), el("div", { class: "value" }, value), el("div", { class: "note" }, note || ""));
}

// What changes with every step.
function figures() {
  const { history: h, facts: f } = data;
  const rows = h.rows;
  const done = rows.step.length ? last(rows.step) : 0;
  document.title = `${f.name}: ${data.state} – MegaTrain`;
  document.getElementById("name").textContent = f.name;
  const chip = document.getElementById("state");
  chip.textContent = { running: "training", finished: "finished", interrupted: "interrupted", stopped: "stopped by an error" }[data.state] || data.state;
  chip.className = "chip " + data.state;
  const date = (s) => new Date(s * 1000).toLocaleString();
  const silent = Date.now() / 1000 - data.updated_unix_s;
  const usual = h.steps ? h.seconds / h.steps : 0;
  if (parts.live && data.state === "running" && silent > 60 + 10 * usual) chip.textContent = `training, no news for ${clock(silent)}`;
  const later = data.state === "running" && !parts.live ? "; reload for later figures" : "";
  document.getElementById("when").textContent = `begun ${date(data.started_unix_s)}, as of ${date(data.updated_unix_s)}${later}`;
  const share = f.steps ? Math.min(1, done / f.steps) : 0;
  parts.progress.style.width = (100 * share).toFixed(1) + "%";
  parts.progress.parentNode.setAttribute("aria-valuenow", (100 * share).toFixed(0));

  const finite = (list) => list.filter((x) => Number.isFinite(x));
  const losses = finite(rows.smoothed);
  const evals = h.evaluations;
  const speed = h.seconds ? h.tokens / h.seconds : null;
  const flops = rows.model_tflops.length ? speed * (last(rows.model_tflops) / last(rows.tokens_per_s)) : null;
  const left = data.state === "running" && h.steps ? ((f.steps - done) * h.seconds) / h.steps : null;
  const tiles = [
    tile("Step", `${whole(done)} / ${whole(f.steps)}`, h.skipped_steps ? `${whole(h.skipped_steps)} skipped` : percent(share)),
    tile("Loss, smoothed", figure(last(losses)), losses.length ? `from ${figure(losses[0])}` : ""),
  ];
  if (evals.length) {
    const value = last(evals)[1];
    tiles.push(tile("Held-out loss", figure(value), `perplexity ${figure(Math.exp(value))}` + (evals.length > 1 ? `, was ${figure(Math.exp(evals[0][1]))}` : "")));
  }
  tiles.push(tile("Tokens a second", speed === null ? "–" : whole(speed), `${whole(h.tokens)} tokens so far`),
    tile("Model TFLOP/s", figure(flops), f.limit && flops ? `${percent(flops / f.limit.tflops)} of the limit, ${figure(f.limit.tflops)}` : "without recomputation"),
    tile("Time", clock(h.seconds), left === null ? "in steps" : `${clock(left)} left`));
  parts.tiles.replaceChildren(...tiles);

  parts.loss.set({
    x: rows.step,
    lines: [{ label: "each step", color: "raw", y: rows.loss, width: 1 }, { label: "smoothed", color: "accent", y: rows.smoothed, width: 2 }],
    dots: [{ label: "held out", color: "eval", x: evals.map((e) => e[0]), y: evals.map((e) => e[1]) }],
  });
  const one = (label, y) => ({ x: rows.step, lines: [{ label, color: "accent", y }] });
  parts.norm.set(one("before clipping", rows.grad_norm));
  parts.lr.set(one("learning rate", rows.lr));
  parts.tokens.set(one("tokens a second", rows.tokens_per_s));
  parts.tflops.set({ ...one("model TFLOP/s", rows.model_tflops), limit: f.limit ? { y: f.limit.tflops, label: `limit ${figure(f.limit.tflops)}` } : null });

  const thinned = h.steps > rows.step.length ? el("p", { class: "muted" }, `${whole(rows.step.length)} of ${whole(h.steps)} steps are drawn: the extreme ones of each stretch.`) : null;
  const skips = h.skipped.length ? el("div", { class: "card" }, table(`Skipped steps (${whole(h.skipped_steps)}); nothing was changed by them`, null, h.skipped.map(([step, why]) => [`step ${step}`, why]))) : null;
  parts.skips.replaceChildren(...[thinned, skips].filter((x) => x));

  parts.samples.parentNode.hidden = !data.samples.length;
  parts.samples.replaceChildren(...[...data.samples].reverse().map((s) => el("div", { class: "sample" },
    el("div", { class: "muted" }, `after step ${s.step}`), el("pre", {}, s.prompt), el("pre", { class: "answer" }, s.sample))));
}

function show() {
  if (!data) return;
  if (!parts.loss) build();
  figures();
}

// A line of metrics.jsonl. What is not a number stands there as text.
function add(line) {
  const h = data.history;
  const number = (x) => (typeof x === "number" ? x : null);
  if (line.loss !== undefined) {
    const rows = h.rows;
    while (rows.step.length && last(rows.step) >= line.step) for (const column of Object.values(rows)) column.pop();
    const before = last(rows.smoothed);
    const loss = number(line.loss);
    const smoothed = loss === null ? before : Number.isFinite(before) ? before + (loss - before) / Math.min(line.step, h.smoothing_steps) : loss;
    const row = { ...line, loss, smoothed };
    for (const [key, column] of Object.entries(rows)) column.push(number(row[key]));
    h.steps += 1;
    h.tokens += line.tokens;
    h.seconds += line.seconds;
    if (line.skipped) {
      h.skipped_steps += 1;
      h.skipped.push([line.step, line.skipped]);
    }
  } else if (line.eval_loss !== undefined) {
    h.evaluations.push([line.step, number(line.eval_loss)]);
  } else if (line.sample !== undefined) {
    data.samples.push(line);
  }
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Follows the run where `megatrain watch` serves this page; anywhere else returns at once.
async function follow() {
  const chip = document.getElementById("state");
  let fresh = performance.now();
  const page = async () => {
    const answer = await fetch("/", { cache: "no-store" });
    const text = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("data").textContent;
    data = JSON.parse(text);
    fresh = performance.now();
    if (data && parts.loss) facts();
  };
  for (;;) {
    try {
      const answer = await fetch(`/metrics.jsonl?from=${data ? data.metrics_bytes : 0}`, { cache: "no-store" });
      if (answer.headers.get("X-MegaTrain") !== "watch") return;
      parts.live = true;
      if (!answer.ok) {
        // Another run has begun in this folder.
        await page();
      } else if (data) {
        const part = await answer.arrayBuffer();
        const lines = new TextDecoder().decode(part).split("\n").filter((line) => line).map((line) => JSON.parse(line));
        data.metrics_bytes += part.byteLength;
        lines.forEach(add);
        if (lines.length) data.updated_unix_s = Date.now() / 1000;
        const due = data.state === "running" ? 6000 : 20000;
        if (performance.now() - fresh > due || (lines.length && data.state !== "running")) {
          await page();
          continue;
        }
        if (lines.length || chip.dataset.lost) show();
      } else {
        await page();
      }
      delete chip.dataset.lost;
      show();
      await pause(data && data.state !== "running" ? 4000 : 1000);
    } catch (error) {
      if (error instanceof SyntaxError) {
        // From the middle of a line: another run's file.
        await page().catch(() => {});
      } else {
        chip.dataset.lost = "1";
        chip.textContent = "no answer from megatrain watch";
      }
      await pause(3000);
    }
  }
}

show();
window.addEventListener("resize", () => {
  for (const chart of cursor.charts) chart.draw();
  if (parts.timeline) parts.timeline.draw();
});
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => window.dispatchEvent(new Event("resize")));
if (location.protocol.startsWith("http")) follow();
