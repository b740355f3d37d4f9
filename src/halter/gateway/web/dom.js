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
  clip: "M19 11.5l-7 7a4.5 4.5 0 0 1-6.4-6.4l7.5-7.5a3 3 0 0 1 4.3 4.3l-7.4 7.4a1.5 1.5 0 0 1-2.2-2.2l6.6-6.6",
  undo: "M9 6 5 10l4 4M5 10h9a5 5 0 0 1 0 10h-3",
  redo: "M15 6l4 4-4 4M19 10h-9a5 5 0 0 0 0 10h3",
  again: "M19 12a7 7 0 1 1-2.2-5.1M19 4v4h-4",
  branch: "M7 5v14M7 14c6 0 10-2 10-6M14.5 9.5 17 7l2.5 2.5",
  more: "M6 12h.01M12 12h.01M18 12h.01",
  diff: "M12 5v8M8 9h8M8 18h8",
  compact: "M5 9h14M5 15h14M12 2v4M10 4.5l2 2 2-2M12 22v-4M10 19.5l2-2 2 2",
  save: "M12 4v11M7 10.5l5 5 5-5M5 20h14",
  settings: "M5 8h9M18 8h1M5 16h1M10 16h9M16 6v4M8 14v4",
  tool: "M14.5 6.5a4 4 0 0 0-5 5L4 17l3 3 5.5-5.5a4 4 0 0 0 5-5L15 12l-3-3z",
  terminal: "M4 5h16v14H4zM7.5 9.5 10 12l-2.5 2.5M12.5 15H16",
  file: "M7 4h7l4 4v12H7zM14 4v4h4",
  search: "M11 5a6 6 0 1 1 0 12 6 6 0 0 1 0-12M15.5 15.5 20 20",
  web: "M12 4a8 8 0 1 1 0 16 8 8 0 0 1 0-16M4 12h16M12 4c3 3 3 13 0 16M12 4c-3 3-3 13 0 16",
  list: "M9 7h11M9 12h11M9 17h11M4.5 7h.01M4.5 12h.01M4.5 17h.01",
  agents: "M9 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6M3.5 19a5.5 5.5 0 0 1 11 0M15 5.5a3 3 0 0 1 0 5.5M16.5 14a5.5 5.5 0 0 1 4 5",
};

const drawn = new Map(); // icons by name: copying one costs less than building it

/** One of the page's own pictures. */
export function icon(name) {
  if (!drawn.has(name)) {
    const path = svg("path", { d: SHAPES[name] });
    drawn.set(name, svg("svg", { viewBox: "0 0 24 24", class: "shape", "aria-hidden": "true" }, path));
  }
  return drawn.get(name).cloneNode(true);
}

/** An element of index.html. */
export const find = (id) => document.getElementById(id);
