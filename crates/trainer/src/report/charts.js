// Curves on canvases. All charts share one cursor: the step that the pointer or the arrow keys are at.
"use strict";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

// An element with attributes and children. Text becomes text nodes, never markup.
function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "class") node.className = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) node.append(child);
  }
  return node;
}

// A number for people: about four digits.
function figure(x) {
  if (x === null || x === undefined || !Number.isFinite(x)) return "–";
  const size = Math.abs(x);
  if (size >= 1e4 || size === 0) return Math.round(x).toLocaleString("en-US");
  if (size >= 100) return x.toFixed(1);
  if (size >= 1) return x.toFixed(3);
  if (size >= 1e-3) return x.toFixed(4);
  return x.toExponential(2);
}

// For axes: 0.25, 12k, 3e-4.
function tickText(x) {
  const size = Math.abs(x);
  if (size === 0) return "0";
  if (size >= 1e6) return +(x / 1e6).toPrecision(4) + "M";
  if (size >= 1e4) return +(x / 1e3).toPrecision(4) + "k";
  if (size < 1e-3) return x.toExponential(1).replace(".0e", "e");
  return String(+x.toPrecision(4));
}

// Round numbers between two bounds, about `count` of them.
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999) || rough;
  const out = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-6; i++) out.push(i * step);
  return out;
}

// Powers of ten between two bounds; where they are few, with 2 and 5 between.
function logTicks(low, high) {
  const out = [];
  const fine = Math.log10(high / low) < 2.5;
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) {
    for (const m of fine ? [1, 2, 5] : [1]) {
      const t = m * 10 ** e;
      if (t >= low * 0.999 && t <= high * 1.001) out.push(t);
    }
  }
  return out.length < 2 ? ticks(low, high, 4).filter((t) => t > 0) : out;
}

// Fits a canvas to its size on the screen; its context in CSS pixels.
function prepare(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  canvas.style.height = height + "px";
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "11px system-ui, sans-serif";
  return { context, width };
}

// The index of the value in an ascending list that is nearest to x.
function nearest(list, x) {
  let [low, high] = [0, list.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (list[middle] < x) low = middle;
    else high = middle;
  }
  return high >= 0 && Math.abs(list[high] - x) < Math.abs(list[low] - x) ? high : low;
}

const cursor = { step: null, charts: [] };
function moveCursor(step) {
  cursor.step = step;
  for (const chart of cursor.charts) chart.draw();
}

// A chart of several lines over steps. `lines`: [{ label, color, y, width }], y beside `x`; `dots`: lines with an x of their own.
class Chart {
  constructor(parent, title, { height = 190, zero = false, logarithmic = false, wide = false } = {}) {
    Object.assign(this, { title, height, zero, log: false, x: [], lines: [], dots: [], limit: null });
    this.canvas = el("canvas", { tabindex: "0", role: "img" });
    // Read aloud only while the keys are on this chart: figures also change by themselves.
    this.output = el("output", { "aria-live": "off" });
    this.legend = el("div", { class: "legend" });
    const toggle = el("input", { type: "checkbox" });
    toggle.addEventListener("change", () => { this.log = toggle.checked; this.draw(); });
    const scale = logarithmic ? el("label", { class: "toggle" }, toggle, "logarithmic") : null;
    const caption = el("figcaption", {}, el("h3", {}, title), this.legend, scale, this.output);
    parent.append(el("figure", { class: "card" + (wide ? " wide" : "") }, caption, this.canvas));
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => moveCursor(null));
    this.canvas.addEventListener("focus", () => this.output.setAttribute("aria-live", "polite"));
    this.canvas.addEventListener("blur", () => {
      this.output.setAttribute("aria-live", "off");
      moveCursor(null);
    });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    cursor.charts.push(this);
  }

  set({ x, lines, dots = [], limit = null }) {
    Object.assign(this, { x, lines, dots: dots.filter((d) => d.x.length), limit });
    // A single line has the chart's name.
    const shown = lines.length + this.dots.length > 1 ? [...lines, ...this.dots] : [];
    if (limit) shown.push({ label: limit.label, color: "limit" });
    this.legend.replaceChildren(...shown.map(({ label, color }) => {
      const mark = el("i", { class: "line" });
      mark.style.background = `var(--${color})`;
      return el("span", {}, mark, label);
    }));
    this.draw();
  }

  bounds() {
    const values = [...this.lines, ...this.dots].flatMap((line) => line.y).filter((y) => Number.isFinite(y) && (!this.log || y > 0));
    let [low, high] = values.reduce(([l, h], y) => [Math.min(l, y), Math.max(h, y)], [Infinity, -Infinity]);
    if (low > high) return null;
    if (this.limit && this.limit.y < 4 * high) high = Math.max(high, this.limit.y);
    if (this.log) return low === high ? [low / 2, high * 2] : [low / 1.1, high * 1.1];
    if (this.zero) low = Math.min(low, 0);
    const margin = (high - low || Math.abs(high) || 1) * 0.06;
    return [this.zero && low === 0 ? 0 : low - margin, high + margin];
  }

  draw() {
    const { context: c, width } = prepare(this.canvas, this.height);
    const box = { left: 50, right: width - 8, top: 8, bottom: this.height - 22 };
    const bounds = this.bounds();
    const steps = [...this.x, ...this.dots.flatMap((d) => d.x)];
    this.describe(bounds);
    if (!bounds || !steps.length || width < 80) {
      c.fillStyle = css("muted");
      c.fillText("nothing yet", box.left, this.height / 2);
      return;
    }
    const [first, last] = steps.reduce(([l, h], x) => [Math.min(l, x), Math.max(h, x)], [Infinity, -Infinity]);
    const [x0, x1] = first === last ? [first - 1, last + 1] : [first, last];
    const px = (x) => box.left + ((x - x0) / (x1 - x0)) * (box.right - box.left);
    const scale = this.log ? Math.log : (y) => y;
    const [low, high] = bounds.map(scale);
    const py = (y) => box.bottom - ((scale(y) - low) / (high - low)) * (box.bottom - box.top);
    this.map = { box, x0, x1 };

    c.lineWidth = 1;
    c.strokeStyle = css("line");
    c.fillStyle = css("muted");
    c.textBaseline = "middle";
    c.textAlign = "right";
    for (const t of this.log ? logTicks(...bounds) : ticks(...bounds, 4)) {
      const y = Math.round(py(t)) + 0.5;
      c.beginPath(); c.moveTo(box.left, y); c.lineTo(box.right, y); c.stroke();
      c.fillText(tickText(t), box.left - 6, y);
    }
    c.textBaseline = "top";
    c.textAlign = "center";
    const across = ticks(x0, x1, Math.max(2, Math.min(8, width / 90))).filter(Number.isInteger);
    for (const t of across) {
      const text = tickText(t);
      const half = c.measureText(text).width / 2;
      c.fillText(text, Math.min(px(t), width - half - 1), box.bottom + 7);
    }

    c.save();
    c.beginPath(); c.rect(box.left - 4, box.top - 4, box.right - box.left + 9, box.bottom - box.top + 6); c.clip();
    if (this.limit) {
      c.strokeStyle = css("limit");
      c.setLineDash([5, 4]);
      const y = py(this.limit.y);
      c.beginPath(); c.moveTo(box.left, y); c.lineTo(box.right, y); c.stroke();
      c.setLineDash([]);
    }
    for (const line of this.lines) this.stroke(c, this.x, line, px, py);
    for (const line of this.dots) {
      this.stroke(c, line.x, line, px, py);
      c.fillStyle = css(line.color);
      line.x.forEach((x, i) => {
        if (!this.drawable(line.y[i])) return;
        c.beginPath(); c.arc(px(x), py(line.y[i]), 3.5, 0, 7); c.fill();
      });
    }
    const at = cursor.step === null ? this.x.length - 1 : nearest(this.x, cursor.step);
    if (cursor.step !== null && at >= 0) this.mark(c, at, px, py, box);
    c.restore();
    this.read(at);
  }

  drawable(y) {
    return Number.isFinite(y) && (!this.log || y > 0);
  }

  stroke(c, xs, line, px, py) {
    c.strokeStyle = css(line.color);
    c.lineWidth = line.width || 1.5;
    c.lineJoin = "round";
    c.beginPath();
    let down = false;
    xs.forEach((x, i) => {
      const y = line.y[i];
      if (!this.drawable(y)) { down = false; return; }
      if (down) c.lineTo(px(x), py(y));
      else c.moveTo(px(x), py(y));
      down = true;
      // A point without neighbours is no line.
      if (!this.drawable(line.y[i - 1]) && !this.drawable(line.y[i + 1])) {
        c.moveTo(px(x) + 1, py(y));
        c.arc(px(x), py(y), 1, 0, 7);
        c.moveTo(px(x), py(y));
      }
    });
    c.stroke();
  }

  mark(c, at, px, py, box) {
    const x = px(this.x[at]);
    c.strokeStyle = css("muted");
    c.lineWidth = 1;
    c.beginPath(); c.moveTo(Math.round(x) + 0.5, box.top); c.lineTo(Math.round(x) + 0.5, box.bottom); c.stroke();
    for (const line of this.lines) {
      if (!this.drawable(line.y[at])) continue;
      c.fillStyle = css(line.color);
      c.beginPath(); c.arc(x, py(line.y[at]), 3.5, 0, 7); c.fill();
    }
  }

  // The figures of a step, above the chart.
  read(at) {
    if (at < 0) {
      this.output.textContent = "";
      return;
    }
    const texts = this.lines.map((line) => (this.lines.length > 1 ? line.label + " " : "") + figure(line.y[at]));
    this.output.textContent = `step ${this.x[at]}: ${texts.join(", ")}`;
  }

  describe(bounds) {
    const ends = this.lines.map((line) => {
      const known = line.y.filter((y) => Number.isFinite(y));
      return known.length ? `${line.label}: first ${figure(known[0])}, last ${figure(known[known.length - 1])}` : "";
    }).filter((text) => text);
    const text = bounds ? `${this.title} over ${this.x.length} steps. ${ends.join(". ")}. Arrow keys read single steps.` : `${this.title}: nothing yet`;
    this.canvas.setAttribute("aria-label", text);
  }

  point(event) {
    if (!this.map || !this.x.length) return;
    const { box, x0, x1 } = this.map;
    const share = (event.clientX - this.canvas.getBoundingClientRect().left - box.left) / (box.right - box.left);
    moveCursor(this.x[nearest(this.x, x0 + share * (x1 - x0))]);
  }

  key(event) {
    if (!this.x.length) return;
    const last = this.x.length - 1;
    const at = cursor.step === null ? last + 1 : nearest(this.x, cursor.step);
    const stride = event.shiftKey ? Math.max(1, Math.round(last / 20)) : 1;
    const to = { ArrowLeft: at - stride, ArrowRight: at + stride, Home: 0, End: last, Escape: null }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    moveCursor(to === null ? null : this.x[Math.max(0, Math.min(last, to))]);
  }
}

