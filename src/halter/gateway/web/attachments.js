// Files for the next message: images as images, text files and PDFs as text. They are chosen with the button, pasted or
// dropped.

import { Problem } from "./api.js";
import { button, el, find, icon } from "./dom.js";
import { plural } from "./text.js";

const PICTURES = /^image\/(png|jpeg|gif|webp)$/;
const MAX_BYTES = 20_000_000; // bytes of a picture or a PDF
const MAX_TEXT_BYTES = 200_000;
const MAX_FILES = 10;

export class Attachments {
  #all = []; // { name, picture } or { name, text }; `isBusy` while its text is being read

  /**
   * `complain(text)` shows what cannot be attached; `onChange()` is called after a change; `readPdf(file)` returns the
   * text of a PDF.
   */
  constructor({ complain, onChange, readPdf }) {
    Object.assign(this, { complain, onChange, readPdf });
    this.reading = null; // a promise, while files are read
    this.node = find("attached");
    this.input = find("files");
    find("attach").append(icon("clip"));
    find("attach").addEventListener("click", () => this.input.click());
    this.input.addEventListener("change", () => {
      this.add([...this.input.files]);
      this.input.value = "";
    });
    find("text").addEventListener("paste", (event) => this.#pasted(event));
    const main = document.querySelector("main");
    main.addEventListener("dragover", (event) => {
      if (![...event.dataTransfer.types].includes("Files")) return;
      event.preventDefault();
      main.classList.add("dropping");
    });
    main.addEventListener("dragleave", (event) => event.target === main && main.classList.remove("dropping"));
    main.addEventListener("drop", (event) => {
      main.classList.remove("dropping");
      if (!event.dataTransfer.files.length) return;
      event.preventDefault();
      this.add([...event.dataTransfer.files]);
    });
  }

  get isEmpty() {
    return !this.#all.length;
  }

  /** Attach files, after those that are being read. */
  add(files) {
    const done = Promise.resolve(this.reading).then(() => this.#addAll(files));
    this.reading = done;
    done.then(() => {
      if (this.reading === done) this.reading = null;
    });
  }

  async #addAll(files) {
    for (const file of files) {
      if (this.#all.length >= MAX_FILES) {
        this.complain(`A message can have ${MAX_FILES} files.`);
        break;
      }
      const problem = await this.#take(file);
      if (problem) this.complain(`${file.name}: ${problem}`);
      this.#draw();
    }
  }

  /** Take what is attached: the pictures, and the text with the text files behind it. */
  take(text) {
    const all = this.#all;
    this.#all = [];
    all.forEach(forget);
    this.#draw();
    const files = all.filter((each) => each.text !== undefined).map((each) => fileBlock(each.name, each.text));
    return { text: [text, ...files].filter(Boolean).join("\n\n"), images: all.flatMap((each) => each.picture ?? []) };
  }

  async #take(file) {
    if (PICTURES.test(file.type)) {
      if (file.size > MAX_BYTES) return "the picture is larger than 20 MB";
      this.#all.push({ name: file.name, picture: file, address: URL.createObjectURL(file) });
      return "";
    }
    if (file.type === "application/pdf" || /\.pdf$/i.test(file.name)) return this.#takePdf(file);
    if (file.type.startsWith("image/")) return "send PNG, JPEG, GIF or WebP pictures";
    if (file.size > MAX_TEXT_BYTES) return "the file is larger than 200 kB";
    const text = await file.text().catch(() => null);
    if (text === null) return "it cannot be read";
    if (/[\0\ufffd]/.test(text)) return "this is neither a picture nor text";
    this.#all.push({ name: file.name, text });
    return "";
  }

  /** A PDF is sent as text, which the gateway extracts. */
  async #takePdf(file) {
    if (file.size > MAX_BYTES) return "the PDF is larger than 20 MB";
    const taken = { name: file.name, isBusy: true };
    this.#all.push(taken);
    this.#draw();
    try {
      const { text, pages, is_cut: isCut } = await this.readPdf(file);
      Object.assign(taken, { text, isBusy: false });
      return isCut ? `only the beginning is attached: the PDF has ${plural(pages, "page")}` : "";
    } catch (error) {
      this.#all = this.#all.filter((each) => each !== taken);
      return error instanceof Problem ? error.message : "the gateway cannot be reached";
    }
  }

  #pasted(event) {
    const files = [...event.clipboardData.files];
    if (!files.length) return;
    event.preventDefault();
    this.add(files);
  }

  #draw() {
    this.node.hidden = this.isEmpty;
    this.node.replaceChildren(...this.#all.map((each) => this.#chip(each)));
    this.onChange();
  }

  #chip(each) {
    const remove = button("", () => this.#remove(each), { class: "icon", icon: "close", "aria-label": `Remove ${each.name}` });
    const shown = each.picture ? el("img", { src: each.address, alt: "" }) : icon("file");
    return el("li", { "aria-busy": each.isBusy ? "true" : null }, shown, el("span", { text: each.name }), remove);
  }

  #remove(each) {
    forget(each);
    this.#all = this.#all.filter((other) => other !== each);
    this.#draw();
    find("text").focus();
  }
}

/** Release the picture of a chip. */
function forget({ address }) {
  if (address) URL.revokeObjectURL(address);
}

/** A text file in a message. */
function fileBlock(name, text) {
  return `<file name="${name.replace(/["\n<>]/g, "_")}">\n${text.replace(/\n$/, "")}\n</file>`;
}

const BLOCK = /(?:^|\n\n)<file name="([^"\n<>]*)">\n([\s\S]*?)\n<\/file>/g;

/** The words of a message, and the text files in it. */
export function splitFiles(text) {
  const files = [...text.matchAll(BLOCK)].map(([, name, content]) => ({ name, content }));
  return { words: files.length ? text.replace(BLOCK, "").trim() : text, files };
}
