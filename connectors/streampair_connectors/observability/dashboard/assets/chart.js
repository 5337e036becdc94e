"use strict";
// Line charts of a stream, as SVG: chart libraries are megabytes large, or need node to build the wheel. An axis
// ends at a round number, so it moves rarely, and a new point changes the path of its own line only.
const Chart = (() => {
  const NS = "http://www.w3.org/2000/svg";
  const LEFT = 60, RIGHT = 10, TOP = 20, BOTTOM = 36, HEIGHT = 232;

  function make(name, attributes, parent) {
    const node = document.createElementNS(NS, name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (parent) parent.appendChild(node);
    return node;
  }

  function put(node, key, value) {
    const text = String(value);
    if (node.getAttribute(key) !== text) node.setAttribute(key, text);
  }

  // The smallest round number that is at least x; x > 0.
  function roundUp(x) {
    const power = 10 ** Math.floor(Math.log10(x));
    for (const m of [1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8]) if (x <= m * power * (1 + 1e-9)) return m * power;
    return 10 * power;
  }

  // About n round numbers from low to high.
  function ticks(low, high, n) {
    const raw = (high - low) / n || 1;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * (1 - 1e-9));
    const out = [];
    for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) out.push(Math.abs(v) < step * 1e-9 ? 0 : v);
    return out;
  }

  // Steps of time axes, in seconds.
  const SPANS = [10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 604800];
  function timeTicks(low, high, n) {
    const raw = (high - low) / n;
    const step = SPANS.find((s) => s >= raw) || Math.ceil(raw / 604800) * 604800;
    const zone = new Date(low * 1000).getTimezoneOffset() * 60;
    const out = [];
    for (let v = Math.ceil((low - zone) / step) * step + zone; v <= high; v += step) out.push(v);
    return out;
  }

  function clock(t, span) {
    const day = { day: "numeric", month: "short" };
    const time = span < 600 ? { hour: "2-digit", minute: "2-digit", second: "2-digit" } : { hour: "2-digit", minute: "2-digit" };
    return new Date(t * 1000).toLocaleString("en-GB", span > 86400 * 2 ? day : time);
  }

  // A domain that grows in round steps. `floor` and `ceiling` are always inside.
  function domainOf(values, floor, ceiling) {
    let low = floor === undefined ? Infinity : floor, high = ceiling === undefined ? -Infinity : ceiling;
    for (const v of values) {
      if (v === null || v === undefined) continue;
      if (v < low) low = v;
      if (v > high) high = v;
    }
    if (low === Infinity || high === -Infinity) return [0, 1];
    if (low >= 0 && floor === undefined && low < high * 0.7) low = 0;
    if (high === low) return low === 0 ? [0, 1] : [Math.min(0, low), Math.max(0, low) * 1.25 || 1];
    const step = roundUp((high - low) / 8);
    return [floor !== undefined && low >= floor ? floor : Math.floor(low / step + 1e-9) * step,
      ceiling !== undefined && high <= ceiling ? ceiling : Math.ceil(high / step - 1e-9) * step];
  }

  class Lines {
    // options: title, help, or a label alone, height, xLabel, yLabel, x ("count", "time" or "share"), floor, ceiling,
    // number(v), empty, marks() -> [x], limit() -> [y, words] that the lines never pass,
    // series: [{name, colour, dashed, step, points() -> {x, y, low, high} (arrays)}]
    constructor(options) {
      this.options = options;
      this.dirty = new Set(options.series.map((_, i) => i));
      this.node = document.createElement("figure");
      this.height = options.height || HEIGHT;
      const caption = document.createElement("figcaption");
      const title = document.createElement("h2");
      title.textContent = options.title || "";
      title.title = options.help || "";
      title.hidden = !options.title;
      this.readout = document.createElement("span");
      this.readout.className = "readout";
      caption.append(title, this.readout);
      this.svg = make("svg", { class: "chart", height: this.height, role: "slider", tabindex: "0", "aria-label": options.title || options.label, "aria-valuemin": "0", "aria-valuemax": "0", "aria-valuenow": "0", "aria-valuetext": "no points yet" });
      this.back = make("g", { "aria-hidden": "true" }, this.svg);
      this.marks = make("g", { "aria-hidden": "true" }, this.svg);
      this.front = make("g", { "aria-hidden": "true" }, this.svg);
      this.limit = options.limit ? ["rect", "line", "text"].map((name) => make(name, { class: "limit", x: LEFT, x1: LEFT }, this.back)) : [];
      this.units = [
        make("text", { class: "unit", x: 0, y: 11 }, this.back),
        make("text", { class: "unit", y: this.height - 4, "text-anchor": "end" }, this.back),
      ];
      this.none = make("text", { class: "none", "text-anchor": "middle" }, this.svg);
      this.cursor = make("line", { class: "cursor", y1: TOP, y2: this.height - BOTTOM, visibility: "hidden" }, this.svg);
      this.lines = options.series.map((s) => ({
        band: s.banded ? make("path", { class: `band c${s.colour}` }, this.front) : null,
        path: make("path", { class: `c${s.colour}${s.dashed ? " dashed" : ""}` }, this.front),
        points: { x: [], y: [] },
      }));
      this.pool = { y: [], x: [] };
      this.cursorIndex = null;
      this.width = 0;
      this.node.append(caption, this.svg);
      if (options.series.length > 1) this.node.append(this.legend());
      this.listen();
    }

    legend() {
      const list = document.createElement("ul");
      list.className = "legend";
      const visible = this.options.series.filter((s) => s.colour < 8 || s.dashed);
      for (const s of visible) {
        const item = document.createElement("li");
        const key = make("svg", { viewBox: "0 0 14 10", "aria-hidden": "true" }, item);
        make("path", { d: "M0 5H14", class: `c${s.colour}`, "stroke-width": 3, "stroke-dasharray": s.dashed ? "4 3" : "none" }, key);
        item.append(s.name);
        list.append(item);
      }
      const rest = this.options.series.length - visible.length;
      if (rest > 0) {
        const item = document.createElement("li");
        item.textContent = `and ${rest} more, in grey`;
        list.append(item);
      }
      return list;
    }

    listen() {
      const svg = this.svg;
      this.resize = new ResizeObserver(() => {
        const width = Math.round(svg.getBoundingClientRect().width);
        if (width && width !== this.width) {
          this.width = width;
          svg.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
          this.dirtyAll();
          this.draw();
        }
      });
      this.resize.observe(svg);
      svg.addEventListener("pointermove", (event) => {
        if (!this.domain) return;
        const box = svg.getBoundingClientRect();
        this.moveTo(this.nearest(this.toX(event.clientX - box.left)));
      });
      svg.addEventListener("pointerleave", () => this.moveTo(null));
      svg.addEventListener("blur", () => this.moveTo(null));
      svg.addEventListener("keydown", (event) => {
        const last = this.longest().x.length - 1;
        const now = this.cursorIndex === null ? last : this.cursorIndex;
        const to = { ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1, Home: 0, End: last, PageUp: now - 20, PageDown: now + 20 }[event.key];
        if (event.key === "Escape") this.moveTo(null);
        if (to === undefined || last < 0) return;
        event.preventDefault();
        this.moveTo(Math.max(0, Math.min(last, to)));
      });
    }

    close() { this.resize.disconnect(); }
    dirtyAll() { this.options.series.forEach((_, i) => this.dirty.add(i)); }
    touch(index) { this.dirty.add(index); }

    longest() {
      let best = { x: [], y: [] };
      for (const line of this.lines) if (line.points.x.length > best.x.length) best = line.points;
      return best;
    }

    nearest(x) {
      const xs = this.longest().x;
      if (!xs.length) return null;
      let best = 0;
      for (let i = 1; i < xs.length; i++) if (Math.abs(xs[i] - x) < Math.abs(xs[best] - x)) best = i;
      return best;
    }

    toX(pixel) {
      const [a, b] = this.domain.x;
      return a + ((pixel - LEFT) / (this.width - LEFT - RIGHT)) * (b - a);
    }

    formatX(v) {
      const { x, xLabel } = this.options;
      if (x === "time") return clock(v, 0);
      if (x === "share") return `${xLabel} ${v.toFixed(2)}`;
      return `${Math.round(v).toLocaleString("en-GB")} ${xLabel}`;
    }

    moveTo(index) {
      this.cursorIndex = index;
      this.showReadout();
    }

    // The readout after the title: the values at the cursor. Empty without a cursor: the tiles have the latest.
    showReadout() {
      const main = this.longest();
      const last = main.x.length - 1;
      const index = this.cursorIndex === null ? last : Math.min(this.cursorIndex, last);
      if (last < 0 || !this.domain) return;
      const x = main.x[index];
      const parts = [];
      for (let i = 0; i < this.lines.length && parts.length < 4; i++) {
        const points = this.lines[i].points;
        let near = -1;
        for (let j = 0; j < points.x.length; j++) if (points.y[j] !== null && (near < 0 || Math.abs(points.x[j] - x) < Math.abs(points.x[near] - x))) near = j;
        if (near >= 0) parts.push(`${this.lines.length > 1 ? this.options.series[i].name + " " : ""}${this.options.number(points.y[near])}`);
      }
      const text = `${this.formatX(x)}: ${parts.join(", ")}`;
      const readout = this.cursorIndex === null ? "" : text;
      if (this.readout.textContent !== readout) this.readout.textContent = readout;
      put(this.svg, "aria-valuemax", last);
      put(this.svg, "aria-valuenow", index);
      put(this.svg, "aria-valuetext", text);
      const [a, b] = this.domain.x;
      const pixel = LEFT + ((x - a) / (b - a)) * (this.width - LEFT - RIGHT);
      put(this.cursor, "visibility", this.cursorIndex === null ? "hidden" : "visible");
      if (this.cursorIndex !== null) { put(this.cursor, "x1", pixel.toFixed(1)); put(this.cursor, "x2", pixel.toFixed(1)); }
    }

    measure() {
      const { floor, ceiling, x } = this.options;
      const ys = [];
      let low = Infinity, high = -Infinity;
      for (const { points } of this.lines) {
        for (let i = 0; i < points.x.length; i++) {
          if (points.y[i] === null) continue;
          if (points.x[i] < low) low = points.x[i];
          if (points.x[i] > high) high = points.x[i];
          ys.push(points.y[i]);
          if (points.low) ys.push(points.low[i], points.high[i]);
        }
      }
      if (low === Infinity) return null;
      if (this.limit.length) ys.push(this.options.limit()[0] * 1.3); // room for what is above it
      let span;
      if (x === "share") { low = 0; span = 1; }
      else if (x === "time") { low = Math.floor(low); span = SPANS.find((s) => s >= high - low) || roundUp(high - low); if (high - low < span / 2) span = roundUp(Math.max(high - low, 5)); }
      else { low = low < (high - low) / 4 ? 0 : low; span = roundUp(Math.max(high - low, 1)); }
      return { x: [low, low + span], y: domainOf(ys, floor, ceiling) };
    }

    draw() {
      if (!this.width) return;
      for (const index of this.dirty) this.lines[index].points = this.options.series[index].points();
      const domain = this.measure();
      if (!domain) {
        put(this.none, "x", this.width / 2);
        put(this.none, "y", this.height / 2);
        if (this.none.textContent !== this.options.empty) this.none.textContent = this.options.empty;
        return;
      }
      put(this.none, "visibility", "hidden");
      const key = JSON.stringify([domain, this.width]);
      if (key !== this.key) {
        this.key = key;
        this.domain = domain;
        this.dirtyAll();
        this.axes();
      }
      for (const index of this.dirty) this.line(index);
      this.drawMarks();
      if (this.limit.length) this.drawLimit();
      this.dirty.clear();
      this.showReadout();
    }

    scales() {
      const [a, b] = this.domain.x, [c, d] = this.domain.y;
      const w = this.width - LEFT - RIGHT, h = this.height - TOP - BOTTOM;
      return [(v) => (LEFT + ((v - a) / (b - a)) * w).toFixed(1), (v) => (TOP + h - ((v - c) / (d - c)) * h).toFixed(1)];
    }

    axes() {
      const [sx, sy] = this.scales();
      const { x, xLabel, yLabel, number, tick } = this.options;
      put(this.units[1], "x", this.width - RIGHT);
      this.units[0].textContent = yLabel || "";
      this.units[1].textContent = xLabel || (x === "time" ? "time" : "");
      const [a, b] = this.domain.x;
      const place = (kind, i) => {
        if (!this.pool[kind][i]) this.pool[kind][i] = { line: kind === "y" ? make("line", {}, this.back) : null, text: make("text", {}, this.back) };
        return this.pool[kind][i];
      };
      const hide = (kind, from) => this.pool[kind].forEach((p, i) => { for (const n of [p.line, p.text]) if (n) put(n, "visibility", i < from ? "visible" : "hidden"); });
      const ys = ticks(...this.domain.y, this.height < HEIGHT ? 2 : 4);
      ys.forEach((v, i) => {
        const { line, text } = place("y", i);
        put(line, "class", v === this.domain.y[0] ? "axis" : "grid-line");
        for (const [k, value] of [["x1", LEFT], ["x2", this.width - RIGHT], ["y1", sy(v)], ["y2", sy(v)]]) put(line, k, value);
        for (const [k, value] of [["x", LEFT - 8], ["y", +sy(v) + 4], ["text-anchor", "end"]]) put(text, k, value);
        text.textContent = (tick || number)(v, ys.length > 1 ? ys[1] - ys[0] : 1);
      });
      hide("y", ys.length);
      const count = Math.max(2, Math.floor(this.width / 130));
      const whole = (v) => x === "share" || Math.abs(v - Math.round(v)) < 1e-6; // there is no half event
      const xs = x === "time" ? timeTicks(a, b, count) : ticks(a, b, count).filter(whole);
      xs.forEach((v, i) => {
        const { text } = place("x", i);
        const near = this.width - RIGHT - sx(v) < 30;
        for (const [k, value] of [["x", near ? this.width - RIGHT : sx(v)], ["y", this.height - BOTTOM + 14], ["text-anchor", near ? "end" : sx(v) - LEFT < 30 ? "start" : "middle"]]) put(text, k, value);
        text.textContent = x === "time" ? clock(v, b - a) : x === "share" ? String(+v.toFixed(2)) : v.toLocaleString("en-GB");
      });
      hide("x", xs.length);
    }

    drawLimit() {
      const [rect, line, text] = this.limit, [most, words] = this.options.limit(), y = this.scales()[1](most);
      for (const [k, value] of [["y", TOP], ["width", this.width - LEFT - RIGHT], ["height", y - TOP]]) put(rect, k, value);
      for (const [k, value] of [["y1", y], ["y2", y], ["x2", this.width - RIGHT]]) put(line, k, value);
      for (const [k, value] of [["x", LEFT + 6], ["y", y - 5]]) put(text, k, value);
      if (text.textContent !== words) text.textContent = words;
    }

    line(index) {
      const { points, path, band } = this.lines[index];
      const [sx, sy] = this.scales();
      // A single point has no line: it is drawn as a small ring, which the line's width fills.
      let d = "", length = 0, last = "";
      const end = () => { if (length === 1) d += "m-2 0a2 2 0 1 0 4 0a2 2 0 1 0-4 0"; length = 0; };
      for (let i = 0; i < points.x.length; i++) {
        if (points.y[i] === null) { if (!this.options.series[index].sparse) end(); continue; }
        last = `${sx(points.x[i])} ${sy(points.y[i])}`;
        d += !length ? `M${last}` : this.options.series[index].step ? `H${last.replace(" ", "V")}` : `L${last}`;
        length++;
      }
      end();
      put(path, "d", d);
      if (!band) return;
      let up = "", down = "";
      for (let i = 0; i < points.x.length; i++) {
        if (!points.low || points.low[i] === null) continue;
        up += `${up ? "L" : "M"}${sx(points.x[i])} ${sy(points.high[i])}`;
        down = `L${sx(points.x[i])} ${sy(points.low[i])}${down}`;
      }
      put(band, "d", up ? `${up}${down}Z` : "");
    }

    drawMarks() {
      const xs = this.options.marks ? this.options.marks() : [];
      const [sx] = this.scales();
      while (this.marks.childNodes.length > xs.length) this.marks.lastChild.remove();
      xs.forEach((v, i) => {
        const node = this.marks.childNodes[i] || make("line", { class: "mark", y1: this.height - BOTTOM - 7, y2: this.height - BOTTOM }, this.marks);
        put(node, "x1", sx(v));
        put(node, "x2", sx(v));
      });
    }
  }

  // A share of a whole as a bar; drawn as SVG, since the page allows no style in an attribute.
  function bar(parts) {
    const svg = make("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" });
    const rects = parts.map((part) => make("rect", { class: `fill c${part.colour}`, y: 0, height: 10, x: 0, width: 0 }, svg));
    return {
      node: svg,
      set(shares) {
        let start = 0;
        shares.forEach((share, i) => {
          const width = Math.max(0, Math.min(1, share || 0)) * 100;
          put(rects[i], "x", start.toFixed(2));
          put(rects[i], "width", width.toFixed(2));
          start += width;
        });
      },
    };
  }

  // A number between -1 and 1 as a bar from the middle, and its error as a line over the bar's end.
  function signed() {
    const svg = make("svg", { viewBox: "-100 0 200 10", preserveAspectRatio: "none", "aria-hidden": "true" });
    const rect = make("rect", { class: "fill c0", y: 1, height: 8, x: 0, width: 0 }, svg);
    const line = make("rect", { class: "whisker", y: 4.4, height: 1.2, x: 0, width: 0 }, svg);
    make("rect", { class: "middle", x: -0.3, width: 0.6, y: 0, height: 10 }, svg);
    return {
      node: svg,
      set(value, error) {
        for (const [node, from, to] of [[rect, Math.min(0, value), Math.max(0, value)], [line, value - error, value + error]]) {
          put(node, "x", (from * 100).toFixed(2));
          put(node, "width", ((to - from) * 100).toFixed(2));
        }
        put(rect, "class", value < 0 ? "fill c1" : "fill c0");
      },
    };
  }

  return { Lines, bar, signed, clock, roundUp, ticks, timeTicks, domainOf };
})();
