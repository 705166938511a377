
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const kinds = [...new Set(data.points.map((point) => point.kind))];

  const shown = (value) => {
    if (value === null || value === undefined) return "\u2013";
    if (typeof value !== "number") return String(value);
    return Number.isInteger(value) ? value.toLocaleString("en") : String(Number(value.toPrecision(4)));
  };
  const linked = (point, text) => {
    if (!point.href) return make("span", "", text);
    const link = make("a", "", text);
    link.href = point.href;
    return link;
  };

  // The chosen run.

  function choose(point) {
    for (const dot of document.querySelectorAll(".point")) dot.classList.toggle("on", dot.dataset.name === point.name);
    const table = make("table");
    const rows = [...data.columns.map(({ key, title }) => [title, point[key]]), ...Object.entries(point.values)];
    for (const [title, value] of rows) {
      const row = make("tr");
      row.append(make("th", "", title), make("td", "", shown(value)));
      table.append(row);
    }
    const last = make("p", "hint");
    if (point.href) last.append(linked(point, "Open its page"));
    else last.textContent = `gatewise report ${point.folder} -o report.html writes its page.`;
    by("detail").replaceChildren(make("h3", "", point.name), table, last);
  }

  // Charts: quality against one other number each, on a logarithmic scale.

  const better = (a, b) => (data.higher ? a > b : a < b);
  function bestOf(points, key) {
    const front = [];
    for (const point of [...points].sort((a, b) => a[key] - b[key])) {
      if (!front.length || better(point.quality, front.at(-1).quality)) front.push(point);
    }
    return front;
  }

  function decades(low, high) {
    const found = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) {
      for (const m of [1, 2, 5]) found.push(m * 10 ** e);
    }
    return found.filter((v) => v >= low && v <= high);
  }

  function chart({ key, title }) {
    const points = data.points.filter((point) => point[key] > 0);
    const width = 520, height = 340, left = 56, right = 16, top = 12, bottom = 36;
    const xs = points.map((p) => p[key]), ys = points.map((p) => p.quality);
    const [x0, x1] = [Math.min(...xs) / 1.15, Math.max(...xs) * 1.15];
    const pad = (Math.max(...ys) - Math.min(...ys)) * 0.06 || 1;
    const [y0, y1] = [Math.min(...ys) - pad, Math.max(...ys) + pad];
    const x = (v) => left + ((width - left - right) * Math.log(v / x0)) / Math.log(x1 / x0);
    const y = (v) => top + ((height - top - bottom) * (y1 - v)) / (y1 - y0);
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, "aria-label": `${data.quality} against ${title}` });
    for (let k = 0; k <= 4; k++) {
      const v = y0 + ((y1 - y0) * k) / 4;
      svg.append(draw("line", { class: "grid", x1: left, x2: width - right, y1: y(v), y2: y(v) }));
      svg.append(draw("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, shown(Number(v.toPrecision(3)))));
    }
    for (const v of decades(x0, x1)) {
      svg.append(draw("text", { x: x(v), y: height - bottom + 15, "text-anchor": "middle" }, v.toLocaleString("en")));
    }
    svg.append(draw("text", { x: (left + width - right) / 2, y: height - 3, "text-anchor": "middle" }, title));
    const keys = make("div", "keys");
    kinds.forEach((kind, k) => {
      const own = points.filter((point) => point.kind === kind);
      const best = bestOf(own, key);
      const path = best.map((p, n) => (n ? `H${x(p[key])}V${y(p.quality)}` : `M${x(p[key])} ${y(p.quality)}`)).join("");
      svg.append(draw("path", { class: `line s${k}`, d: path }));
      for (const point of own) {
        const pale = best.includes(point) ? "" : " pale";
        const dot = draw("circle", { class: `point${pale}`, cx: x(point[key]), cy: y(point.quality), r: 5.5,
          fill: `var(--run-${k})`, tabindex: 0, role: "button", "aria-label": point.name });
        dot.dataset.name = point.name;
        dot.append(draw("title", {}, `${point.name}: ${shown(point.quality)}, ${shown(point[key])}`));
        dot.addEventListener("click", () => choose(point));
        dot.addEventListener("dblclick", () => { if (point.href) window.location.href = point.href; });
        dot.addEventListener("keydown", (event) => { if (event.key === "Enter") choose(point); });
        svg.append(dot);
      }
      const item = make("span", `run-${k}`);
      item.append(make("span", "dot"), document.createTextNode(kind));
      keys.append(item);
    });
    const box = make("div", "chart");
    box.append(make("h3", "", `${data.quality} against ${title}`), svg, keys);
    return box;
  }

  by("title").textContent = data.name;
  for (const column of data.columns.slice(1)) by("charts").append(chart(column));
  by("detail").append(make("p", "hint", "Choose a point."));

  const best = data.points.filter((point) => point.best);
  const searched = [...new Set(best.flatMap((point) => Object.keys(point.values)))];
  const table = make("table", "runs");
  const head = make("tr");
  for (const title of ["run", ...data.columns.map((column) => column.title), ...searched]) head.append(make("th", "", title));
  table.append(head);
  for (const point of best) {
    const row = make("tr");
    const first = make("td");
    first.append(linked(point, point.name));
    row.append(first);
    for (const { key } of data.columns) row.append(make("td", "", shown(point[key])));
    for (const key of searched) row.append(make("td", "", shown(point.values[key])));
    table.append(row);
  }
  by("best").append(table);
})();
