// Making elements. Text is only ever set as text: nothing in this page reads a string as HTML.

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element: `on` has listeners, `text` its text, all else are attributes; null and false are left out. A child may be
 * an array of them, of any length: as arguments, 100,000 are more than a browser takes.
 */
export function el(tag, options = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [kind, heard] of Object.entries(value)) node.addEventListener(kind, heard);
    else if (name === "text") node.textContent = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
  return node;
}

/** An element of a drawing. */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") node.textContent = value;
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

/** A button with a word on it, a picture, or both. */
export function button(label, act, { icon: name = "", ...options } = {}) {
  const content = [name ? icon(name) : null, label ? el("span", { text: label }) : null];
  return el("button", { type: "button", ...options, on: { click: act } }, ...content);
}

const SHAPES = {
  plus: "M12 5v14M5 12h14",
  menu: "M4 7h16M4 12h16M4 17h16",
  help: "M9.2 9.2a2.9 2.9 0 1 1 4 2.7c-.8.3-1.2.9-1.2 1.8M12 17h.01",
  trash: "M5 7h14M10 7V5h4v2M7 7l1 12h8l1-12",
  mic: "M12 4a2.5 2.5 0 0 1 2.5 2.5v5a2.5 2.5 0 0 1-5 0v-5A2.5 2.5 0 0 1 12 4M6 11.5a6 6 0 0 0 12 0M12 17.5V20",
  stop: "M7.5 7.5h9v9h-9z",
  send: "M12 19V5M6 11l6-6 6 6",
  edit: "M5 19h3L18.5 8.5l-3-3L5 16zM13.5 7.5l3 3",
  close: "M7 7l10 10M17 7 7 17",
  check: "M5 12.5l4.5 4.5L19 7.5",
  time: "M4 6h9M8 12h9M11 18h9",
  down: "M12 5v14M6 13l6 6 6-6",
  copy: "M9 9h10v10H9zM5 15V5h10",
};

/** One of the page's own pictures. */
export function icon(name) {
  return svg("svg", { viewBox: "0 0 24 24", class: "shape", "aria-hidden": "true" }, svg("path", { d: SHAPES[name] }));
}

/** An element of index.html. */
export const find = (id) => document.getElementById(id);
