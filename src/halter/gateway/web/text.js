// Durations, times and reasons as text, and text with invisible characters made visible.

/** A duration in the unit that fits it. */
export function seconds(value) {
  if (Math.abs(value) < 1) return `${round(value * 1000, Math.abs(value) < 0.01 ? 1 : 0)} ms`;
  if (Math.abs(value) < 60) return `${round(value, value < 10 ? 2 : 1)} s`;
  if (Math.abs(value) < 3600) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  if (Math.abs(value) < 172800) return `${round(value / 3600, 1)} h`;
  return `${round(value / 86400, 1)} days`;
}

let numbers = null; // toLocaleString() would make one of these each time

/** A whole number, with marks between the thousands. */
export function grouped(number) {
  numbers ??= new Intl.NumberFormat("en");
  return numbers.format(number);
}

/** A number of things: "1 file", "2 files". */
export function plural(count, one, many = `${one}s`) {
  return `${grouped(count)} ${count === 1 ? one : many}`;
}

/** A text that begins a sentence. */
export function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** A number of tokens, short. */
export function tokens(count) {
  if (count < 1_000) return String(count);
  return count < 1_000_000 ? `${round(count / 1_000, count < 10_000 ? 1 : 0)}k` : `${round(count / 1_000_000, 1)}M`;
}

/** A cost in USD; nothing if it is not known, or there is none. */
export function money(cost) {
  if (!cost) return "";
  return `$${cost < 0.01 ? cost.toFixed(4) : cost.toFixed(2)}`;
}

/** How long ago, roughly. */
export function ago(time, now = Date.now() / 1000) {
  const passed = Math.max(0, now - time);
  if (passed < 60) return "now";
  if (passed < 3600) return `${Math.floor(passed / 60)} min`;
  if (passed < 86400) return `${Math.floor(passed / 3600)} h`;
  return new Date(time * 1000).toLocaleDateString(undefined, { month: "short", day: "numeric" });
}

/** Minutes and seconds of a recording. */
export function clock(value) {
  return `${Math.floor(value / 60)}:${String(Math.floor(value % 60)).padStart(2, "0")}`;
}

const REASONS = {
  stop: "Stopped",
  interrupt: "Stopped by a new message",
  rollback: "Rolled back",
  pause: "Paused",
  timeout: "Timed out",
  disconnect: "Stopped: the client disconnected",
  shutdown: "Stopped: the gateway shut down",
  crash: "Cut off: the program ended",
  external: "Cancelled by the program",
  output_limit: "Output limit reached",
  step_limit: "Step limit reached",
  token_limit: "Token limit reached",
  cost_limit: "Cost limit reached",
  unknown_price: "The price of the model is not known",
  invalid_output: "No answer had the required format",
  context_limit: "The conversation is too long for the model",
  error: "Failed",
};

/** Why a turn ended, if not by being done. */
export function because(reason) {
  return REASONS[reason] ?? (reason ? `Stopped: ${reason}` : "Ended");
}

const OUTCOMES = {
  planned: "waiting",
  running: "running",
  completed: "done",
  partial: "partial",
  cancelled: "stopped",
  not_started: "not started",
  failed: "failed",
  timed_out: "timed out",
  abandoned: "abandoned",
  denied: "denied",
  complete: "done",
  interrupted: "stopped",
};

/** The state of a part of a turn, in a word or two. */
export function outcome(status) {
  return OUTCOMES[status] ?? String(status).replaceAll("_", " ");
}

// Invisible characters, those that change the order of others, and unusual spaces.
const HIDDEN = /[^\P{C}\n\t]|[\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu;

/** Text in which nothing is hidden: invisible characters are shown as escapes such as \u202e. */
export function visible(text) {
  return text.replace(HIDDEN, (sign) => {
    const code = sign.codePointAt(0).toString(16);
    return code.length > 4 ? `\\u{${code}}` : `\\u${code.padStart(4, "0")}`;
  });
}

function round(value, digits) {
  return String(Number(value.toFixed(digits)));
}
