// A small chart of the last values: a line over a faint area.

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT, EDGE] = [120, 36, 2];

export class Chart {
  #line = part("polyline", { class: "line" });
  #area = part("polygon", { class: "area" });

  /** `length` values fit in; `most` is the top of the scale, or what it is at least where it `grows`. */
  constructor(length, most, grows) {
    Object.assign(this, { length, most, grows });
    this.view = part("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none" });
    this.view.setAttribute("aria-hidden", "true");
    this.view.append(this.#area, this.#line);
  }

  /** The newest value stands at the right; null leaves it at the ground. */
  draw(values) {
    const top = this.grows ? Math.max(this.most, ...values) : this.most;
    const left = this.length - values.length;
    const points = values.map((value, index) => {
      const x = ((left + index) / (this.length - 1)) * WIDTH;
      return [x, HEIGHT - EDGE - ((value ?? 0) / top) * (HEIGHT - 2 * EDGE)];
    });
    this.#line.setAttribute("points", points.map((point) => point.join()).join(" "));
    const ground = [[WIDTH, HEIGHT], [points[0]?.[0] ?? WIDTH, HEIGHT]];
    this.#area.setAttribute("points", [...points, ...ground].map((point) => point.join()).join(" "));
  }
}

function part(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
