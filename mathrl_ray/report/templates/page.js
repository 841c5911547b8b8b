"use strict";
/* The report page's script: axis of the curves, runs to show, a readout under each chart, the tables of numbers. No request, no HTML from text. */
(() => {
  const AXES = ["step", "generated_tokens", "wall_clock_s"];
  const NOT_LABELS = ["value", "low", "high", "n", "run_index"];
  const MOST_ROWS = 1000;
  const numbers = JSON.parse(document.getElementById("page-numbers").textContent);
  const hidden = new Set();
  const isOneRun = !document.querySelector("input[name=run]");

  const make = (tag, text = "", parts = []) => {
    const element = document.createElement(tag);
    if (text !== "") element.textContent = text;
    element.append(...parts);
    return element;
  };
  const isNothing = (value) => value === null || value === undefined || value === "";
  const shown = (value) => {
    if (isNothing(value)) return "–";
    if (typeof value !== "number") return String(value);
    if (Number.isInteger(value)) return value.toLocaleString("en");
    const size = Math.abs(value);
    if (size < 0.001 || size >= 1e7) return value.toExponential(2);
    return size >= 1000 ? value.toLocaleString("en", { maximumFractionDigits: 1 }) : String(Number(value.toPrecision(4)));
  };
  const percent = (value) => (value && Math.abs(value) < 0.001 ? `${shown(100 * value)} %` : `${(100 * value).toFixed(1)} %`);
  const words = (name) => String(name).replaceAll("_", " ");
  const say = (text) => { const place = document.getElementById("said"); if (place) place.textContent = text; };
  const between = (value, least, most) => Math.min(Math.max(value, least), most);
  const rising = (values) => [...values].sort((one, other) => one - other);

  /* One figure. A stop is a place where the readout can stand: an x in a panel of a curve or of lanes, a row of bars, or a row of numbers. */
  class Chart {
    constructor(figure) {
      this.figure = figure;
      this.held = numbers[figure.dataset.chart];
      this.box = figure.querySelector(".drawing");
      this.cursor = figure.querySelector(".cursor");
      this.readout = figure.querySelector(".readout");
      this.isCurve = Boolean(this.held.series);
      this.isLanes = !this.isCurve && this.column("start_s") >= 0;
      this.reset();
      this.box.addEventListener("keydown", (event) => this.onKey(event));
      for (const name of ["pointermove", "pointerdown"]) this.box.addEventListener(name, (event) => this.onPointer(event));
      figure.querySelector("details.numbers").addEventListener("toggle", (event) => this.fillTable(event.target));
    }

    get form() { return this.figure.querySelector(".form:not([hidden])"); }
    get svg() { return this.form.querySelector("svg"); }
    get axis() { return this.form.dataset.axis; }
    get stops() { return (this.foundStops ??= this.findStops()); }
    column(name) { return this.held.columns.indexOf(name); }

    reset() {
      this.foundStops = null;
      this.place = -1;
      this.cursor.hidden = true;
      this.readout.replaceChildren();
    }

    findStops() {
      this.isShare = !this.isLanes && this.svg.textContent.includes(" %");
      const panels = JSON.parse(this.svg.dataset.panels);
      if (this.isCurve) return panels.flatMap((panel) => this.curveStops(panel));
      if (this.isLanes) {
        const starts = new Set(this.held.rows.map((row) => Math.max(row[this.column("start_s")], panels[0].x_min)));
        return rising(starts).map((x) => ({ panel: panels[0], x }));
      }
      return (panels.length && this.barStops(panels[0])) || this.held.rows.map((row) => ({ rows: [row] }));
    }

    curveStops(panel) {
      const place = AXES.indexOf(this.axis);
      const found = new Set(this.series(panel).flatMap((each) => each.points.map((point) => this.held.xs[point[0]][place])));
      found.delete(null);
      return rising(found).map((x) => ({ panel, x }));
    }

    series(panel) {
      return this.held.series.filter((each) => !hidden.has(each.run) && (!panel.stage || each.stage === panel.stage));
    }

    /* Horizontal bars stand at 0, 1, 2, ... from the top: of what there are as many of as there is room for. */
    barStops(panel) {
      const wanted = Math.round(Math.abs(panel.y_min - panel.y_max));
      for (const names of [["part"], ["stage"], ["run"], ["run", "stage"], ["group"], ["group", "stage"]]) {
        const places = names.map((name) => this.column(name));
        if (places.includes(-1)) continue;
        const groups = new Map();
        for (const row of this.held.rows) {
          const key = places.map((place) => words(row[place])).join(", ");
          groups.set(key, [...(groups.get(key) || []), row]);
        }
        if (groups.size === wanted) return [...groups].map(([head, rows], at) => ({ panel, head, rows, at, names }));
      }
      return null;
    }

    onKey(event) {
      const last = this.stops.length - 1;
      const to = { ArrowRight: this.place + 1, ArrowLeft: this.place < 0 ? last : this.place - 1, Home: 0, End: last }[event.key];
      if (to === undefined || event.ctrlKey || event.altKey || event.metaKey || last < 0) return;
      event.preventDefault();
      this.show(between(to, 0, last));
    }

    onPointer(event) {
      const bounds = this.svg.getBoundingClientRect();
      if (!this.stops.length || !bounds.width || !this.stops[0].panel) return;
      const x = ((event.clientX - bounds.left) / bounds.width) * this.svg.viewBox.baseVal.width;
      const y = ((event.clientY - bounds.top) / bounds.height) * this.svg.viewBox.baseVal.height;
      const away = this.stops.map((stop) => this.distance(stop, x, y));
      const nearest = away.indexOf(Math.min(...away));
      if (nearest !== this.place) this.show(nearest);
    }

    distance(stop, x, y) {
      const { left, right, top, bottom } = stop.panel;
      if (stop.rows) return Math.abs(this.barTop(stop) + this.barHeight(stop) / 2 - y);
      const outside = Math.max(left - x, x - right, 0) + Math.max(top - y, y - bottom, 0);
      return Math.abs(this.left(stop) - x) + 1000 * outside;
    }

    left({ panel, x }) { return panel.left + ((x - panel.x_min) / (panel.x_max - panel.x_min || 1)) * (panel.right - panel.left); }
    barHeight({ panel }) { return (panel.bottom - panel.top) / Math.abs(panel.y_min - panel.y_max || 1); }
    barTop(stop) { return stop.panel.top + stop.at * this.barHeight(stop); }

    show(index) {
      this.place = index;
      const stop = this.stops[index];
      const parts = this.valuesAt(stop).map((text, at, all) => make("span", at < all.length - 1 ? `${text};` : text));
      const heading = this.heading(stop);
      if (heading) parts.unshift(make("b", `${heading}:`));
      this.readout.replaceChildren(...parts.flatMap((part) => [part, " "]));
      if (stop.panel) this.putCursor(stop);
    }

    heading({ panel, x, rows, head }) {
      if (rows) return head || "";
      const stage = panel.stage ? `${words(panel.stage)}, ` : "";
      return `${stage}${this.placed(x)}`;
    }

    placed(x) { return this.axis === "step" ? `step ${shown(x)}` : `${shown(x)} ${this.axis === "generated_tokens" ? "tokens" : "s"}`; }

    valuesAt(stop) {
      if (stop.rows) return stop.rows.filter((row) => !hidden.has(row[this.column("run_index")])).map((row) => this.rowText(row, stop.names || []));
      if (this.isLanes) return this.workAt(stop.x);
      return this.series(stop.panel).map((each) => this.valueNear(each, stop)).filter(Boolean);
    }

    number(value) { return this.isShare && typeof value === "number" ? percent(value) : shown(value); }

    range(low, high) { return isNothing(low) ? "" : ` (${this.number(low)} to ${this.number(high)})`; }

    rowText(row, said) {
      const get = (name) => row[this.column(name)];
      const others = this.held.columns.filter((name) => !NOT_LABELS.includes(name) && !said.includes(name) && !isNothing(get(name)));
      const labels = others.filter((name) => typeof get(name) === "string" && !(name === "run" && isOneRun));
      const figures = others.filter((name) => typeof get(name) === "number" && !/_(low|high)$/.test(name));
      const told = labels.map((name) => words(get(name))).join(", ");
      const value = this.column("value") < 0 ? "" : `${this.number(get("value"))}${this.range(get("low"), get("high"))}`;
      const further = figures.map((name) => `${words(name)} ${shown(get(name))}`);
      const n = isNothing(get("n")) ? [] : [`n ${shown(get("n"))}`];
      return [told && value ? `${told}: ${value}` : told || value, ...further, ...n].join(", ");
    }

    /* The nearest point of a line, if it is near, with its own x where that is another one. */
    valueNear(series, { panel, x }) {
      const place = AXES.indexOf(this.axis);
      let best = null;
      let least = Math.max(0.02 * (panel.x_max - panel.x_min), 1e-9);
      for (const point of series.points) {
        const held = this.held.xs[point[0]][place];
        const away = held === null ? Infinity : Math.abs(held - x);
        if (away < least) [best, least] = [point, away];
      }
      if (!best) return "";
      const where = least ? ` (${this.placed(this.held.xs[best[0]][place])})` : ""; // a thinned line, or another run's tokens and seconds
      const name = [isOneRun ? "" : series.name || series.group, words(series.line)].filter(Boolean).join(", ");
      return `${name ? name + ": " : ""}${this.number(best[1])}${this.range(best[2], best[3])}${where}`;
    }

    /* Of each actor, what it did at a moment, or how busy it was around it. */
    workAt(x) {
      const [actor, start, end, what, share] = ["actor", "start_s", "end_s", "what", "busy_share"].map((name) => this.column(name));
      const found = new Map(this.held.rows.map((row) => [row[actor], new Set()]));
      for (const row of this.held.rows) {
        if (row[start] <= x && x < row[end]) found.get(row[actor]).add(what < 0 ? `${Math.round(100 * row[share])} % busy` : words(row[what]));
      }
      return [...found].map(([name, held]) => `${name}: ${[...held].join(" and ") || "idle"}`);
    }

    putCursor(stop) {
      const { panel } = stop;
      const scale = this.svg.getBoundingClientRect().width / this.svg.viewBox.baseVal.width;
      const form = this.form;
      const place = stop.rows
        ? { left: panel.left, top: this.barTop(stop), width: panel.right - panel.left, height: this.barHeight(stop) }
        : { left: this.left(stop), top: panel.top, width: 0, height: panel.bottom - panel.top };
      this.cursor.classList.toggle("band", Boolean(stop.rows));
      this.cursor.hidden = false;
      this.cursor.style.left = `${form.offsetLeft + place.left * scale}px`;
      this.cursor.style.top = `${form.offsetTop + place.top * scale}px`;
      this.cursor.style.width = `${place.width * scale}px`;
      this.cursor.style.height = `${place.height * scale}px`;
    }

    fillTable(details) {
      const place = details.querySelector(".scroll");
      if (!details.open || place.childElementCount) return;
      const [columns, rows, total] = this.tableRows();
      const cell = (value, isHead, scope) => {
        const made = make(isHead ? "th" : "td", shown(value));
        if (isHead) made.scope = scope;
        if (typeof value === "number") made.className = "number";
        return made;
      };
      const kept = rows.slice(0, MOST_ROWS);
      const left = total > kept.length ? ` The first ${shown(kept.length)} of ${shown(total)} rows; --figures writes all of them.` : "";
      place.append(make("table", "", [
        make("caption", "", [make("span", `Numbers of ${this.figure.querySelector("h3").textContent}.${left}`)]),
        make("thead", "", [make("tr", "", columns.map((name) => cell(words(name), true, "col")))]),
        make("tbody", "", kept.map((row) => make("tr", "", row.map((value, at) => cell(value, at === 0, "row"))))),
      ]));
    }

    tableRows() {
      if (!this.isCurve) return [this.held.columns, this.held.rows, this.held.num_rows];
      const columns = ["run", "stage", "line", ...AXES, "value", "low", "high", "n"];
      const rows = this.held.series.flatMap((each) => each.points.map(([x, value, low, high, n]) => [
        each.name || each.group, words(each.stage), words(each.line), ...this.held.xs[x], value, low, high, n,
      ]));
      return [columns, rows, rows.length];
    }
  }

  const charts = [...document.querySelectorAll("figure[data-chart]")].map((figure) => new Chart(figure));

  const useAxis = (axis) => {
    for (const chart of charts) {
      const forms = [...chart.figure.querySelectorAll(".form")];
      if (forms.length < 2) continue;
      const wanted = forms.find((each) => each.dataset.axis === axis) || forms[0];
      for (const form of forms) form.hidden = form !== wanted;
      chart.reset();
    }
  };
  for (const radio of document.querySelectorAll("input[name=axis]")) {
    radio.addEventListener("change", () => { useAxis(radio.value); say(`Curves against ${radio.parentElement.textContent.trim()}`); });
    if (radio.checked) useAxis(radio.value); // a browser may remember what was chosen before
  }

  const useRun = (box) => {
    if (box.checked) hidden.delete(Number(box.value)); else hidden.add(Number(box.value));
    for (const element of document.querySelectorAll(`svg.figure .run${box.value}`)) element.style.display = box.checked ? "" : "none";
    for (const chart of charts) chart.reset();
  };
  for (const box of document.querySelectorAll("input[name=run]")) {
    box.addEventListener("change", () => { useRun(box); say(`${box.parentElement.textContent.trim()} ${box.checked ? "shown" : "hidden"}`); });
    if (!box.checked) useRun(box);
  }
})();
