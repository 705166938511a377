
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const runs = data.runs;
  const two = runs.length > 1;
  const MEANING = {
    LSTM: { i: "input", f: "forget", g: "information flow", o: "output" },
    GRU: { r: "reset", u: "update", n: "candidate" },
  };
  const PART = { i: 0, r: 0, f: 1, u: 1, g: 2, n: 2, o: 3 }; // gates with the same part share a colour
  const NO_GATE = "-";
  const LOG_FROM = 20; // a curve that spans as much has a logarithmic axis
  const GUTTER = 16; // pixels for the gates' letters, left of every line
  const ORDERS = {
    pattern: "by live gates",
    number: "by number",
    gates: "fewest live gates first",
    reach: "longest memory first",
    short: "shortest memory first",
  };

  const shown = (value) => {
    if (value === null || value === undefined) return "";
    const size = Math.abs(value);
    if (value === 0) return "0";
    if (size >= 1e5) return value.toExponential(1);
    return size >= 100 ? value.toFixed(0) : size >= 0.01 ? String(Number(value.toPrecision(3))) : value.toExponential(1);
  };
  const plural = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;

  // Gradient norms: one byte a lag, log10 from `top` downwards; 255 means nothing to see.

  for (const run of runs) {
    for (const layer of run.layers) {
      if (!layer.lag) continue;
      const text = atob(layer.lag.bytes);
      layer.lag.code = Uint8Array.from(text, (c) => c.charCodeAt(0));
    }
  }
  const curveOf = (layer, k) => {
    const { lags, code, top, decades } = layer.lag;
    const values = [];
    for (let t = 0; t <= lags; t++) {
      const byte = code[k * (lags + 1) + t];
      values.push(byte === 255 ? null : top - (byte / 254) * decades);
    }
    return values;
  };
  const medianOf = (layer, kind) => {
    layer.medians = layer.medians || {};
    if (layer.medians[kind] === undefined) {
      const own = layer.kinds.flatMap((k, j) => (k === kind ? [j] : []));
      const { lags, code, top, decades } = layer.lag;
      layer.medians[kind] = own.length < 2 ? null : Array.from({ length: lags + 1 }, (_, t) => {
        const bytes = own.map((j) => code[j * (lags + 1) + t]).sort((a, b) => a - b);
        const middle = (bytes[(bytes.length - 1) >> 1] + bytes[bytes.length >> 1]) / 2;
        return middle > 254 ? null : top - (middle / 254) * decades;
      });
    }
    return layer.medians[kind];
  };

  // Heading and summary.

  const title = by("title");
  runs.forEach((run, r) => {
    if (r) title.append(make("span", "versus", " and "));
    const part = make("span", two ? `run-${r}` : "", "");
    if (two) part.append(make("span", "dot"));
    part.append(document.createTextNode(run.title));
    title.append(part);
  });
  document.title = `${runs.map((run) => run.title).join(" and ")} · gatewise`;

  const labels = [...new Set(runs.flatMap((run) => run.facts.map((fact) => fact.label)))];
  const facts = by("facts");
  facts.classList.toggle("two", two);
  for (const label of labels) {
    const card = make("div", "fact");
    card.append(make("div", "label", label));
    const values = make("div", "values");
    runs.forEach((run, r) => {
      const fact = run.facts.find((one) => one.label === label);
      const value = make("div", "value");
      if (two) {
        const dot = make("span", `dot run-${r}`);
        dot.title = run.title;
        value.append(dot);
      }
      value.append(document.createTextNode(fact ? fact.value : "–"));
      if (fact && fact.note) value.append(make("div", "note", fact.note));
      values.append(value);
    });
    card.append(values);
    facts.append(card);
  }
  const said = runs.flatMap((run) => [...run.notes, ...(run.missing ? [run.missing] : [])]
    .map((note) => (two ? `${run.title}: ${note}` : note)));
  by("notes").textContent = [...new Set(said)].join(" · ");

  // Controls.

  const state = { order: "pattern", kind: "", patterns: new Set() };
  const hasLags = runs.some((run) => run.layers.some((layer) => layer.lag));
  for (const [key, text] of Object.entries(ORDERS)) {
    if (!hasLags && (key === "reach" || key === "short")) continue;
    by("sort").append(new Option(text, key));
  }
  const kindCount = {};
  const patternCount = {};
  for (const run of runs) {
    for (const layer of run.layers) {
      for (const kind of layer.kinds) kindCount[kind] = (kindCount[kind] || 0) + 1;
      for (const pattern of layer.patterns) patternCount[pattern] = (patternCount[pattern] || 0) + 1;
    }
  }
  by("kind").append(new Option("all", ""));
  for (const kind of ["short", "long", "constant"]) {
    if (kindCount[kind]) by("kind").append(new Option(`${kind} (${kindCount[kind]})`, kind));
  }
  for (const [pattern, n] of Object.entries(patternCount).sort((a, b) => b[1] - a[1])) {
    const chip = make("button", "chip", pattern === NO_GATE ? "none" : pattern);
    chip.type = "button";
    chip.dataset.pattern = pattern;
    chip.setAttribute("aria-pressed", "false");
    chip.append(make("span", "n", n));
    chip.addEventListener("click", () => {
      const on = !state.patterns.has(pattern);
      if (on) state.patterns.add(pattern);
      else state.patterns.delete(pattern);
      chip.setAttribute("aria-pressed", String(on));
      arrange();
    });
    by("patterns").append(chip);
  }
  by("sort").addEventListener("change", (event) => { state.order = event.target.value; arrange(); });
  by("kind").addEventListener("change", (event) => { state.kind = event.target.value; arrange(); });

  const cells = new Set(runs.flatMap((run) => run.layers.map((layer) => layer.cell)));
  const gatesShown = new Map();
  for (const run of runs) {
    for (const layer of run.layers) {
      for (const gate of layer.gates) gatesShown.set(gate, (MEANING[layer.cell] || {})[gate] || "");
    }
  }
  const colourName = (gate) => (gate in PART ? `--gate-${PART[gate]}` : "--gate-x");
  for (const [gate, meaning] of gatesShown) {
    const item = make("li");
    const swatch = make("span", "swatch");
    swatch.style.background = `var(${colourName(gate)})`;
    item.append(swatch, document.createTextNode(`${gate} ${meaning}`.trim()));
    by("legend").append(item);
  }
  by("legend").append(make("li", "", "pale: a constant, stronger for a larger value"));
  if (runs.some((run) => run.layers.some((layer) => layer.neurons.length < layer.width))) {
    const item = make("li");
    const swatch = make("span", "swatch");
    swatch.style.background = "var(--gone)";
    item.append(swatch, document.createTextNode("removed"));
    by("legend").append(item);
  }
  if (cells.has("GRU")) by("legend").append(make("li", "", "framed: varies without a product"));

  // Pictures: the whole of every layer.

  const pictures = [];
  const depth = Math.max(...runs.map((run) => run.layers.length));
  by("pictures").classList.toggle("two", two);
  for (let l = 0; l < depth; l++) {
    for (const run of runs) {
      const picture = run.layers[l] ? newPicture(run.layers[l], colourName) : { box: make("div"), paint: () => {} };
      pictures.push(picture);
      by("pictures").append(picture.box);
    }
  }

  // Maps: one canvas a layer. A frame above the canvas marks the neuron, so pointing at one redraws nothing.

  const maps = [];
  const holder = by("maps");
  holder.classList.toggle("two", two);
  for (let l = 0; l < depth; l++) {
    runs.forEach((run, r) => {
      const layer = run.layers[l];
      if (layer) holder.append(newMap(run, r, layer, l));
      else holder.append(make("div"));
    });
  }

  function newMap(run, r, layer, level) {
    const box = make("div", "map");
    const heading = make("h3");
    if (two) heading.append(make("span", `dot run-${r}`));
    heading.append(document.createTextNode(layer.name));
    const counts = make("p", "counts");
    const field = make("div", "field");
    field.tabIndex = 0;
    field.setAttribute("role", "application");
    field.dataset.run = r;
    field.dataset.layer = layer.name;
    const canvas = make("canvas");
    const cursor = make("div", "cursor");
    field.append(canvas, cursor);
    box.append(heading, counts, field);
    const map = { run, r, layer, level, box, counts, field, canvas, cursor, order: [], at: 0 };
    maps.push(map);
    const pointed = (event) => {
      const bounds = field.getBoundingClientRect();
      const line = Math.floor((event.clientY - bounds.top) / map.lineHeight);
      const column = Math.floor((event.clientX - bounds.left - GUTTER) / map.cell);
      const at = line * map.columns + column;
      return column >= 0 && column < map.columns && line >= 0 && at < map.order.length ? at : -1;
    };
    field.addEventListener("pointermove", (event) => {
      const at = pointed(event);
      if (at >= 0 && !held) choose(map, at);
    });
    field.addEventListener("click", (event) => {
      const at = pointed(event);
      if (at < 0) return;
      const again = held && chosen && chosen.map === map && chosen.at === at;
      hold(!again);
      choose(map, at);
    });
    field.addEventListener("focus", () => { if (!held && map.order.length) choose(map, Math.min(map.at, map.order.length - 1)); });
    field.addEventListener("keydown", (event) => {
      const last = map.order.length - 1;
      const at = map.at;
      const target = {
        ArrowLeft: at - 1, ArrowRight: at + 1, ArrowUp: at - map.columns, ArrowDown: at + map.columns,
        Home: 0, End: last, PageUp: at - 5 * map.columns, PageDown: at + 5 * map.columns,
      }[event.key];
      if (target !== undefined && last >= 0) {
        event.preventDefault();
        choose(map, Math.max(0, Math.min(last, target)), true);
      } else if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        if (last >= 0) { hold(!held); choose(map, Math.min(at, last)); }
      } else if (event.key === "Escape") {
        hold(false);
      }
    });
    return box;
  }

  let chosen = null;
  let held = false;
  let pending = 0;

  function hold(on) {
    held = on;
    for (const map of maps) map.cursor.classList.toggle("held", on);
  }

  function choose(map, at, scroll) {
    if (chosen && chosen.map === map && chosen.at === at && chosen.order === map.order) return;
    map.at = at;
    chosen = { map, at, order: map.order };
    for (const other of maps) other.cursor.classList.toggle("on", other === map);
    const x = GUTTER + (at % map.columns) * map.cell;
    const y = Math.floor(at / map.columns) * map.lineHeight;
    map.cursor.style.transform = `translate(${x - 2}px, ${y - 2}px)`;
    map.cursor.style.width = `${map.cell + 3}px`;
    map.cursor.style.height = `${map.lineHeight - map.gap + 3}px`;
    if (scroll) {
      const top = map.field.getBoundingClientRect().top + y;
      if (top < 0 || top + map.lineHeight > window.innerHeight) map.cursor.scrollIntoView({ block: "center" });
    }
    if (pending) return;
    pending = requestAnimationFrame(() => {
      pending = 0;
      if (chosen) describe(chosen.map, chosen.map.order[chosen.at]); // a filter may have come before the frame
    });
  }

  function arrange() {
    for (const map of maps) {
      const { layer } = map;
      const live = (k) => liveGates(layer.patterns[k]);
      const reach = layer.reach || layer.neurons.map(() => 0);
      const compare = {
        number: (a, b) => a - b,
        pattern: (a, b) => live(b) - live(a) || (layer.patterns[a] < layer.patterns[b] ? -1 : layer.patterns[a] > layer.patterns[b] ? 1 : a - b),
        gates: (a, b) => live(a) - live(b) || a - b,
        reach: (a, b) => reach[b] - reach[a] || a - b,
        short: (a, b) => reach[a] - reach[b] || a - b,
      }[state.order];
      map.order = layer.neurons.map((_, k) => k)
        .filter((k) => !state.patterns.size || state.patterns.has(layer.patterns[k]))
        .filter((k) => !state.kind || layer.kinds[k] === state.kind)
        .sort(compare);
      const total = layer.neurons.length;
      const alive = layer.patterns.reduce((n, _, k) => n + live(k), 0);
      const some = map.order.length < total ? `${map.order.length} shown · ` : "";
      map.counts.textContent = `${some}${total} of ${plural(layer.width, "neuron")} kept · ${alive} of ${layer.gates.length * layer.width} gates live${layer.cut ? " · after the cut" : ""}`;
      map.field.dataset.shown = map.order.length;
      map.field.setAttribute("aria-label", `Gate map of ${layer.name}, ${plural(map.order.length, "neuron")}. Arrow keys move, Enter holds.`);
      map.at = 0;
      map.cursor.classList.remove("on");
      paint(map);
    }
    hold(false);
    chosen = null;
    hint();
    const first = maps.find((map) => map.order.length);
    if (first) choose(first, 0);
  }

  function paint(map) {
    const { layer, canvas, order } = map;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const width = map.field.clientWidth || 300;
    const many = Math.max(...maps.filter((other) => other.level === map.level).map((other) => other.layer.neurons.length));
    const wanted = many <= 140 ? 22 : many <= 420 ? 15 : many <= 900 ? 11 : 9;
    map.columns = Math.max(1, Math.min(Math.floor((width - GUTTER) / wanted), Math.max(order.length, 1)));
    map.cell = wanted;
    map.gap = wanted >= 15 ? 10 : 7;
    const high = Math.max(8, Math.round(wanted * 0.82));
    map.lineHeight = high * layer.gates.length + map.gap;
    const lines = Math.max(1, Math.ceil(order.length / map.columns));
    const height = order.length ? lines * map.lineHeight : 24;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.clearRect(0, 0, width, height);
    const fills = layer.gates.map((gate) => colour(colourName(gate)));
    const paleInk = colour("--pale-ink");
    const inset = wanted >= 15 ? 1 : 0.5;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.font = `${wanted >= 22 ? 9.5 : 8}px system-ui, "DejaVu Sans", sans-serif`;
    if (order.length) {
      pen.fillStyle = colour("--soft");
      for (let line = 0; line < lines; line++) {
        layer.gates.forEach((gate, g) => pen.fillText(gate, GUTTER / 2 - 2, line * map.lineHeight + (g + 0.5) * high));
      }
    }
    order.forEach((k, at) => {
      const x = GUTTER + (at % map.columns) * map.cell;
      const top = Math.floor(at / map.columns) * map.lineHeight;
      for (let g = 0; g < layer.gates.length; g++) {
        const y = top + g * high;
        const kind = layer.live[k][g];
        const w = map.cell - 2 * inset;
        const h = high - 2 * inset;
        if (kind === "l") {
          pen.fillStyle = fills[g];
          pen.fillRect(x + inset, y + inset, w, h);
        } else if (kind === "v") {
          pen.strokeStyle = fills[g];
          pen.lineWidth = 1.5;
          pen.strokeRect(x + inset + 1, y + inset + 1, w - 2, h - 2);
        } else {
          const value = layer.constant[k][g];
          pen.globalAlpha = tintOf(value);
          pen.fillStyle = fills[g];
          pen.fillRect(x + inset, y + inset, w, h);
          pen.globalAlpha = 1;
          if (wanted >= 22) {
            pen.fillStyle = paleInk;
            pen.fillText(brief(value), x + map.cell / 2, y + high / 2 + 0.5);
          }
        }
      }
    });
    if (!order.length) {
      pen.fillStyle = colour("--soft");
      pen.textAlign = "left";
      pen.font = "13px system-ui, sans-serif";
      pen.fillText(layer.neurons.length ? "No neuron of this layer is of that sort." : "No neuron of this layer is left.", 2, 12);
    }
  }

  function brief(value) {
    const text = value.toFixed(2);
    if (text === "1.00" || text === "-1.00" || text === "0.00" || text === "-0.00") return String(Math.round(value) + 0);
    return text.replace("0.", ".");
  }

  // The chosen neuron.

  const detail = by("detail");

  function hint() {
    const hintText = runs.some((run) => run.layers.some((layer) => layer.neurons.length))
      ? "Point at a neuron, or focus a map and use the arrow keys."
      : "No neuron is left.";
    detail.replaceChildren(make("p", "hint", hintText));
    delete detail.dataset.neuron;
  }

  function describe(map, k) {
    const { run, r, layer } = map;
    const nodes = [];
    const heading = make("h3");
    if (two) heading.append(make("span", `dot run-${r}`));
    heading.append(document.createTextNode(`${layer.name} · neuron ${layer.neurons[k]}`));
    nodes.push(heading);
    const badges = make("div");
    badges.append(make("span", "badge kind", layer.kinds[k]));
    const pattern = layer.patterns[k] === NO_GATE ? "no live gate" : `live: ${layer.patterns[k]}`;
    badges.append(make("span", "badge pattern", pattern));
    if (layer.reach) badges.append(make("span", "badge reach", `mean lag ${layer.reach[k]}`));
    nodes.push(badges);

    const table = make("table", "gates");
    const head = make("tr");
    for (const text of ["gate", "", "value", "bias"]) head.append(make("th", "", text));
    table.append(head);
    layer.gates.forEach((gate, g) => {
      const row = make("tr");
      const name = make("td");
      const swatch = make("span", "swatch");
      const kind = layer.live[k][g];
      swatch.style.background = kind === "l" ? `var(${colourName(gate)})` : "var(--pale)";
      swatch.style.borderColor = kind === "l" ? "transparent" : "var(--rule)";
      name.append(swatch, document.createTextNode(`${gate} ${(MEANING[layer.cell] || {})[gate] || ""}`.trim()));
      row.append(name);
      row.append(make("td", "", { l: "live", v: "varies without a product", c: "constant" }[kind]));
      row.append(make("td", "number", kind === "c" ? shown(layer.constant[k][g]) : ""));
      row.append(make("td", "number", shown(layer.bias[k][g])));
      table.append(row);
    });
    nodes.push(make("h4", "", "Gates"), table);

    if (layer.lag) {
      nodes.push(make("h4", "", `Gradient norm against lag, mean over ${plural(layer.lag.sequences, "sequence")}`));
      nodes.push(lagChart(layer, k, r));
    }
    const links = (title, lists) => {
      if (!lists.some((list) => list.length)) return;
      const grid = make("div", "linked");
      layer.gates.forEach((gate, g) => {
        if (!lists[g].length) return;
        grid.append(make("span", "gate", gate), linkList(run, lists[g], 0));
      });
      nodes.push(make("h4", "", title), grid);
    };
    links("Strongest from below", layer.inputs[k]);
    links("Strongest from its own layer", layer.recurrent[k]);
    if (layer.readers[k].length) {
      nodes.push(make("h4", "", "Read by"));
      for (const reading of layer.readers[k]) {
        nodes.push(make("div", "", `${run.names[reading[0]]}, ${plural(reading[1], "weight")}`));
        nodes.push(linkList(run, reading, 2));
      }
    }
    detail.replaceChildren(...nodes);
    by("status").textContent = `${layer.name}, neuron ${layer.neurons[k]}, ${pattern}, ${layer.kinds[k]}`;
    detail.dataset.neuron = layer.neurons[k];
    detail.dataset.layer = layer.name;
    detail.dataset.run = r;
  }

  function linkList(run, flat, start) {
    const list = make("div", "links");
    for (let p = start; p < flat.length; p += 2) {
      const link = make("span", "link", run.names[flat[p]]);
      link.append(make("span", "v", `${flat[p + 1] > 0 ? "+" : ""}${shown(flat[p + 1])}`));
      list.append(link);
    }
    return list;
  }

  // Charts.

  function pathOf(values, x, y) {
    let path = "";
    let down = false;
    values.forEach((value, k) => {
      if (value === null || value === undefined) { down = false; return; }
      path += `${down ? "L" : "M"}${x(k).toFixed(1)} ${y(value).toFixed(1)}`;
      down = true;
    });
    return path;
  }

  function lagChart(layer, k, r) {
    const width = 336, height = 176, left = 40, right = 14, top = 8, bottom = 30;
    const { lags, top: ceiling, decades, enough, shared } = layer.lag;
    const high = Math.ceil(ceiling), low = Math.floor(ceiling - decades);
    const x = (t) => left + ((width - left - right) * t) / Math.max(lags, 1);
    const y = (v) => top + ((height - top - bottom) * (high - Math.max(v, low))) / (high - low);
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Gradient norm against lag" });
    for (let e = low; e <= high; e += 2) {
      svg.append(draw("line", { class: "grid", x1: left, x2: width - right, y1: y(e), y2: y(e) }));
      const label = draw("text", { x: left - 6, y: y(e) + 4, "text-anchor": "end" }, "10");
      label.append(draw("tspan", { dy: -4, "font-size": 8 }, String(e)));
      svg.append(label);
    }
    for (const t of ticks(0, lags, 5)) {
      svg.append(draw("text", { x: x(t), y: height - bottom + 14, "text-anchor": "middle" }, String(t)));
    }
    svg.append(draw("text", { x: (left + width - right) / 2, y: height - 3, "text-anchor": "middle" }, "lag"));
    for (const kind of ["short", "long"]) {
      const median = medianOf(layer, kind);
      if (median) svg.append(draw("path", { class: `context ${kind}`, d: pathOf(median, x, y) }));
    }
    const curve = curveOf(layer, k);
    const path = draw("path", { class: `line s${r}`, d: pathOf(curve, x, y) });
    svg.append(path);
    const faint = shared <= lags;
    if (faint) {
      const from = x(shared - 0.5);
      svg.append(draw("rect", { class: "few", x: from, y: top, width: width - right - from, height: height - top - bottom }));
    }
    const present = curve.flatMap((v, t) => (v === null ? [] : [[t, v]]));
    if (present.length === 1) svg.append(draw("circle", { cx: x(present[0][0]), cy: y(present[0][1]), r: 3, fill: `var(--run-${r})` }));
    if (!present.length) {
      svg.append(draw("text", { x: (left + width) / 2, y: height / 2, "text-anchor": "middle" }, "no gradient: the neuron is constant"));
    }
    const box = make("div", "lag");
    box.dataset.first = curve[0] === null ? "" : curve[0].toFixed(2);
    const keys = make("div", "keys");
    keys.append(key(`line s${r}`, "this neuron"));
    if (medianOf(layer, "long")) keys.append(key("context long", "median of long"));
    if (medianOf(layer, "short")) keys.append(key("context short", "median of short"));
    if (faint) keys.append(make("span", "few", `faint: fewer than ${plural(enough, "sequence")}`));
    box.append(svg, keys);
    return box;
  }

  function key(className, text) {
    const item = make("span");
    const sample = draw("svg", { viewBox: "0 0 24 8", "aria-hidden": "true" });
    sample.append(draw("path", { class: className, d: "M0 4H24" }));
    item.append(sample, document.createTextNode(text));
    return item;
  }

  function ticks(low, high, about) {
    const span = high - low || 1;
    const raw = span / about;
    const unit = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((m) => m * unit).find((s) => s >= raw);
    const found = [];
    for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-6; v += step) found.push(Number(v.toPrecision(12)));
    return found;
  }

  function logTicks(low, high) {
    const steps = high / low > 200 ? [1] : [1, 2, 5];
    const found = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e++) {
      for (const step of steps) found.push(step * 10 ** e);
    }
    return found.filter((v) => v >= low && v <= high);
  }

  function historyChart(title) {
    const series = runs.flatMap((run, r) => run.history.filter((one) => one.title === title)
      .flatMap((one) => one.series.map((s, k) => ({ ...s, r, k }))));
    const width = 400, height = 220, left = 48, right = 14, top = 10, bottom = 32;
    const xs = series.flatMap((s) => s.x), ys = series.flatMap((s) => s.y);
    const bounds = (values) => [Math.min(...values), Math.max(...values)];
    const [x0, x1] = bounds(xs);
    let [y0, y1] = bounds(ys);
    const log = y0 > 0 && y1 / y0 >= LOG_FROM;
    const margin = (y1 - y0) * 0.06 || Math.abs(y1) * 0.05 || 1;
    [y0, y1] = log ? [y0 / 1.15, y1 * 1.15] : [Math.max(y0 - margin, y0 >= 0 ? 0 : -Infinity), y1 + margin];
    const x = (v) => left + ((width - left - right) * (v - x0)) / (x1 - x0 || 1);
    const scale = log ? Math.log10 : (v) => v;
    const y = (v) => top + ((height - top - bottom) * (scale(y1) - scale(v))) / (scale(y1) - scale(y0));
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title} by epoch` });
    for (const v of log ? logTicks(y0, y1) : ticks(y0, y1, 4)) {
      svg.append(draw("line", { class: "grid", x1: left, x2: width - right, y1: y(v), y2: y(v) }));
      svg.append(draw("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, v.toLocaleString("en")));
    }
    for (const v of ticks(x0, x1, 6)) {
      if (Number.isInteger(v)) svg.append(draw("text", { x: x(v), y: height - bottom + 15, "text-anchor": "middle" }, String(v)));
    }
    svg.append(draw("text", { x: (left + width - right) / 2, y: height - 3, "text-anchor": "middle" }, "epoch"));
    const keys = make("div", "keys");
    for (const s of series) {
      const className = `line s${s.r} d${s.k % 4}`;
      svg.append(draw("path", { class: className, d: pathOf(s.y, (k) => x(s.x[k]), y) }));
      if (s.x.length === 1) svg.append(draw("circle", { cx: x(s.x[0]), cy: y(s.y[0]), r: 3, fill: `var(--run-${s.r})` }));
      const name = [two ? runs[s.r].title : "", s.name].filter(Boolean).join(", ");
      if (name) keys.append(key(className, name));
    }
    const box = make("div", "chart");
    box.append(make("h3", "", title), svg, keys);
    return box;
  }

  const titles = [...new Set(runs.flatMap((run) => run.history.map((one) => one.title)))];
  for (const one of titles) by("charts").append(historyChart(one));
  by("training").hidden = !titles.length;

  // Start, and draw again when width or colours change.

  for (const part of pictures) part.paint();
  arrange();
  let lastWidth = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === lastWidth) return;
    lastWidth = window.innerWidth;
    repaint();
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  function repaint() {
    for (const part of pictures) part.paint();
    for (const map of maps) paint(map);
    if (chosen) {
      const { map, at } = chosen;
      chosen = null;
      choose(map, at);
    }
  }
})();
