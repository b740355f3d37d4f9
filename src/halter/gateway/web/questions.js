// A question of a tool, where it was asked: choices as buttons, or a field for text, and then the answer.

import { button, el } from "./dom.js";

export class QuestionView {
  #shown = "";

  constructor(item, act) {
    this.item = item;
    this.act = act;
    this.body = el("div", { class: "body" });
    this.node = el(
      "section",
      { class: "question", "aria-label": "A question" },
      el("p", { class: "asked", text: item.question }),
      this.body,
    );
  }

  update() {
    const { item } = this;
    this.node.dataset.state = item.state;
    const now = `${item.state} ${item.said}`;
    if (now === this.#shown) return;
    this.#shown = now;
    if (item.state === "open") this.body.replaceChildren(...this.#open());
    else this.body.replaceChildren(el("p", { class: "said", text: this.#answerText() }));
  }

  #answerText() {
    const { item } = this;
    if (item.state === "withdrawn") return "Withdrawn: no answer needed.";
    const value = item.said || (typeof item.value === "string" ? item.value : JSON.stringify(item.value));
    return item.voice ? `🎙️ “${value}”` : value;
  }

  #open() {
    const { item, act } = this;
    if (item.choices?.length) {
      const choices = item.choices.map((choice) => button(choice, () => act.answer(item.id, choice)));
      return [
        el("div", { class: "row" }, ...choices),
        el("p", { class: "note", text: "Or write: your next message is the answer." }),
      ];
    }
    const line = el("input", {
      type: "text",
      "aria-label": "Your answer",
      placeholder: "Your answer",
      on: {
        keydown: (event) => {
          if (event.key === "Enter" && !event.isComposing) give();
        },
      },
    });
    const give = () => line.value.trim() && act.answer(item.id, line.value);
    return [el("div", { class: "row" }, line, button("Answer", give, { class: "main" }))];
  }
}
