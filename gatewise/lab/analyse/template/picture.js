
// The whole network before and after: a column for every neuron that there was, a row for every gate. Live gates have
// their colour, constants a tint of it by their value, removed neurons are grey.

const TINT = { least: 0.16, span: 0.34 }; // of a constant gate: 0 and +-1
const tintOf = (value) => TINT.least + TINT.span * Math.min(1, Math.abs(value || 0));
const liveGates = (pattern) => (pattern === "-" ? 0 : pattern.length);

function newPicture(layer, colourName) {
  const box = make("figure", "picture");
  const kept = layer.neurons.length;
  const gates = layer.patterns.reduce((n, pattern) => n + liveGates(pattern), 0);
  const canvas = make("canvas");
  canvas.setAttribute("role", "img");
  const said = `${kept} of ${layer.width} neurons and ${gates} of ${layer.gates.length * layer.width} gates are left`;
  canvas.setAttribute("aria-label", `${layer.name}: ${said}`);
  const caption = make("figcaption");
  caption.append(make("strong", "", layer.name), document.createTextNode(` ${said}`));
  box.append(caption, canvas);
  const order = layer.patterns.map((_, k) => k).sort((a, b) => liveGates(layer.patterns[b]) - liveGates(layer.patterns[a])
    || (layer.patterns[a] < layer.patterns[b] ? -1 : layer.patterns[a] > layer.patterns[b] ? 1 : a - b));

  const paint = () => {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const width = box.clientWidth || 300;
    const high = 12;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(high * layer.gates.length * ratio);
    canvas.style.height = `${high * layer.gates.length}px`;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const wide = Math.min(width / layer.width, 18);
    const gap = wide > 4 ? 1 : wide > 2 ? 0.5 : 0;
    layer.gates.forEach((gate, g) => {
      order.forEach((k, at) => {
        const kind = layer.live[k][g];
        pen.fillStyle = colour(colourName(gate));
        pen.globalAlpha = kind === "l" ? 1 : kind === "v" ? 0.6 : tintOf(layer.constant[k][g]);
        pen.fillRect(at * wide, g * high, wide - gap, high - 1);
      });
      pen.globalAlpha = 1;
      pen.fillStyle = colour("--gone");
      if (gap) for (let at = kept; at < layer.width; at++) pen.fillRect(at * wide, g * high, wide - gap, high - 1);
      else pen.fillRect(kept * wide, g * high, (layer.width - kept) * wide, high - 1);
    });
  };
  return { box, paint };
}
