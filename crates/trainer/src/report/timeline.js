// The stream timeline of a step: a row a lane, a bar a command. Zoom and pan by pointer or keys.

// Microseconds for people.
function duration(us) {
  if (us >= 1e6) return (us / 1e6).toFixed(3) + " s";
  if (us >= 1e3) return (us / 1e3).toFixed(us >= 1e5 ? 1 : 3) + " ms";
  return us.toFixed(1) + " µs";
}

class StreamTimeline {
  constructor(parent) {
    this.rowHeight = 30;
    this.canvas = el("canvas", { tabindex: "0", role: "img" });
    this.title = el("h3");
    this.output = el("output");
    this.legend = el("div", { class: "legend" });
    const button = (text, name, act) => {
      const node = el("button", { type: "button", "aria-label": name, title: name }, text);
      node.addEventListener("click", act);
      return node;
    };
    const buttons = el("span", {}, button("−", "zoom out", () => this.zoom(2)), " ", button("+", "zoom in", () => this.zoom(0.5)), " ",
      button("whole step", "show the whole step", () => this.show(0, this.length)));
    this.tip = el("div", { id: "tip" });
    parent.append(el("figure", { class: "card streams" }, el("figcaption", {}, this.title, this.legend, this.output, buttons), this.canvas,
      el("p", { class: "muted" }, "Drag to move, Ctrl and wheel to zoom; with the keyboard: arrow keys, + and −, 0 for the whole step.")), this.tip);
    this.canvas.addEventListener("pointerdown", (event) => {
      this.drag = { x: event.clientX, from: this.from, to: this.to };
      this.canvas.setPointerCapture(event.pointerId);
    });
    for (const end of ["pointerup", "pointercancel"]) this.canvas.addEventListener(end, () => { this.drag = null; });
    this.canvas.addEventListener("pointermove", (event) => this.move(event));
    this.canvas.addEventListener("pointerleave", () => { this.tip.style.display = "none"; });
    this.canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.time(event));
    }, { passive: false });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  set(data) {
    const same = this.data && this.data.step === data.step && this.data.length_us === data.length_us;
    if (same) return;
    const keep = this.data && this.from !== undefined && (this.from > 0 || this.to < this.length);
    this.data = data;
    this.length = Math.max(data.length_us, 1);
    // For each lane its bars by start; eight numbers each, as the writer says.
    this.lanes = data.lanes.map((name) => ({ name, bars: [] }));
    for (let i = 0; i + 7 < data.bars.length; i += 8) {
      const [lane, phase, name, unit, micro, start, length, commands] = data.bars.slice(i, i + 8);
      if (this.lanes[lane]) this.lanes[lane].bars.push({ phase, name, unit, micro, start, end: start + length, commands });
    }
    this.lanes = this.lanes.filter((lane) => lane.bars.length);
    this.title.textContent = `Step ${data.step}: ${duration(data.length_us)}, ${data.commands.toLocaleString("en-US")} commands`;
    const used = new Set(this.lanes.flatMap((lane) => lane.bars.map((bar) => bar.phase)));
    this.legend.replaceChildren(...data.phases.filter((_, i) => used.has(i)).map((phase) => {
      const mark = el("i");
      mark.style.background = `var(--${phase})`;
      return el("span", {}, mark, phase.toLowerCase());
    }));
    const shares = this.lanes.map((lane) => `${lane.name} ${lane.bars.length} bars`);
    this.canvas.setAttribute("aria-label", `What each lane did in step ${data.step}: ${shares.join(", ")}. Arrow keys move, plus and minus zoom.`);
    if (keep) this.show(this.from, this.to);
    else this.show(0, this.length);
  }

  show(from, to) {
    const span = Math.max(Math.min(to - from, this.length), Math.min(this.length, 5));
    this.from = Math.max(0, Math.min(from, this.length - span));
    this.to = this.from + span;
    this.draw();
  }

  zoom(factor, around = (this.from + this.to) / 2) {
    this.show(around - (around - this.from) * factor, around + (this.to - around) * factor);
  }

  pan(share) {
    const by = share * (this.to - this.from);
    this.show(this.from + by, this.to + by);
  }

  key(event) {
    const act = {
      ArrowLeft: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2), "+": () => this.zoom(0.5), "=": () => this.zoom(0.5),
      "-": () => this.zoom(2), 0: () => this.show(0, this.length), Home: () => this.show(0, this.to - this.from),
      End: () => this.show(this.length, this.length + this.to - this.from),
    }[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  }

  time(event) {
    const { left, right } = this.box;
    const x = event.clientX - this.canvas.getBoundingClientRect().left;
    return this.from + ((x - left) / (right - left)) * (this.to - this.from);
  }

  draw() {
    if (!this.data) return;
    const height = this.lanes.length * this.rowHeight + 26;
    const { context: c, width } = prepare(this.canvas, height);
    const box = { left: 70, right: width - 4, bottom: this.lanes.length * this.rowHeight };
    this.box = box;
    if (width < 160) return;
    const scale = (box.right - box.left) / (this.to - this.from);
    const px = (t) => box.left + (t - this.from) * scale;
    const colors = this.data.phases.map((phase) => css(phase));
    c.strokeStyle = css("line");
    c.fillStyle = css("muted");
    c.textBaseline = "top";
    c.textAlign = "center";
    for (const t of ticks(this.from, this.to, Math.max(2, width / 130))) {
      const x = Math.round(px(t)) + 0.5;
      c.beginPath(); c.moveTo(x, 0); c.lineTo(x, box.bottom); c.stroke();
      const half = c.measureText(duration(t)).width / 2;
      c.fillText(t === 0 ? "0" : duration(t).replace(/\.?0+ /, " "), Math.min(x, width - half), box.bottom + 8);
    }
    this.lanes.forEach((lane, row) => {
      const top = row * this.rowHeight + 3;
      c.fillStyle = css("ink");
      c.textAlign = "left";
      c.textBaseline = "middle";
      c.fillText(lane.name, 2, top + this.rowHeight / 2 - 3);
      c.save();
      c.beginPath(); c.rect(box.left, top, box.right - box.left, this.rowHeight - 6); c.clip();
      this.drawLane(c, lane.bars, colors, px, box, top);
      c.restore();
    });
    this.output.textContent = this.to - this.from < this.length ? `${duration(this.from)} to ${duration(this.to)}` : "";
  }

  // Wide bars as they are. Narrow ones share pixels: each pixel has the colour of the phase that fills most of it, as strong
  // as it is full.
  drawLane(c, bars, colors, px, box, top) {
    const height = this.rowHeight - 6;
    const pixels = Math.ceil(box.right - box.left);
    const full = new Float32Array(pixels * colors.length);
    let narrow = false;
    for (let i = this.firstAfter(bars, this.from); i < bars.length && bars[i].start < this.to; i++) {
      const bar = bars[i];
      const [x0, x1] = [px(bar.start), px(bar.end)];
      if (x1 - x0 >= 2) {
        c.fillStyle = colors[bar.phase];
        c.fillRect(x0, top, x1 - x0 - (x1 - x0 > 6 ? 1 : 0), height);
        if (x1 - x0 > 60) this.label(c, bar, Math.max(x0, box.left), Math.min(x1, box.right), top, height);
        continue;
      }
      narrow = true;
      for (let p = Math.max(0, Math.floor(x0 - box.left)); p < Math.min(pixels, x1 - box.left); p++) {
        const share = Math.min(x1 - box.left, p + 1) - Math.max(x0 - box.left, p);
        full[p * colors.length + bar.phase] += Math.max(share, 0.02);
      }
    }
    for (let p = 0; narrow && p < pixels; p++) {
      let [most, sum] = [0, 0];
      for (let k = 0; k < colors.length; k++) {
        sum += full[p * colors.length + k];
        if (full[p * colors.length + k] > full[p * colors.length + most]) most = k;
      }
      if (sum === 0) continue;
      c.globalAlpha = Math.max(0.25, Math.min(1, sum));
      c.fillStyle = colors[most];
      c.fillRect(box.left + p, top, 1, height);
    }
    c.globalAlpha = 1;
  }

  label(c, bar, x0, x1, top, height) {
    const text = this.name(bar);
    if (c.measureText(text).width > x1 - x0 - 8) return;
    c.fillStyle = "#ffffff";
    c.textAlign = "left";
    c.textBaseline = "middle";
    c.fillText(text, x0 + 4, top + height / 2 + 0.5);
  }

  name(bar) {
    const name = bar.commands > 1 ? `${bar.commands} commands` : this.data.names[bar.name];
    return bar.unit >= 0 ? `${name} · unit ${bar.unit}` : name;
  }

  // The first bar that ends after t.
  firstAfter(bars, t) {
    let [low, high] = [0, bars.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (bars[middle].end <= t) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  move(event) {
    if (!this.data || !this.box) return;
    if (this.drag) {
      const by = ((this.drag.x - event.clientX) / (this.box.right - this.box.left)) * (this.drag.to - this.drag.from);
      this.show(this.drag.from + by, this.drag.to + by);
      return;
    }
    const y = event.clientY - this.canvas.getBoundingClientRect().top;
    const lane = this.lanes[Math.floor(y / this.rowHeight)];
    const slack = (2 * (this.to - this.from)) / (this.box.right - this.box.left);
    const t = this.time(event);
    const bar = lane && lane.bars[this.firstAfter(lane.bars, t - slack)];
    if (!bar || bar.start > t + slack) {
      this.tip.style.display = "none";
      return;
    }
    const micro = bar.micro >= 0 ? `, micro-batch ${bar.micro}` : "";
    this.tip.textContent = `${this.name(bar)}\n${this.data.phases[bar.phase].toLowerCase()}${micro}, lane ${lane.name}\n${duration(bar.end - bar.start)} from ${duration(bar.start)}`;
    this.tip.style.display = "block";
    this.tip.style.left = Math.min(event.clientX + 14, window.innerWidth - 260) + "px";
    this.tip.style.top = event.clientY + 16 + "px";
  }
}

