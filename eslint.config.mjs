// The rules for the page's JavaScript. scripts/check applies them where npm is present; there is nothing to build.
const browser = [
  "AbortController", "AbortSignal", "AudioContext", "Blob", "BroadcastChannel", "CSS", "CustomEvent", "Event", "EventSource", "File",
  "FileReader", "FormData", "Headers", "IntersectionObserver", "MediaRecorder", "MutationObserver", "Node",
  "Notification", "ResizeObserver", "Response", "TextDecoder", "TextDecoderStream", "TextEncoder", "URL", "URLSearchParams", "WebSocket",
  "cancelAnimationFrame", "clearInterval", "clearTimeout", "confirm", "console", "crypto", "customElements",
  "document", "fetch", "getComputedStyle", "history", "localStorage", "location", "matchMedia", "navigator",
  "performance", "queueMicrotask", "requestAnimationFrame", "sessionStorage", "setInterval", "setTimeout",
  "structuredClone", "window",
];
const rules = [
  "array-callback-return", "constructor-super", "eqeqeq", "for-direction", "getter-return",
  "no-async-promise-executor", "no-class-assign", "no-cond-assign", "no-const-assign", "no-constant-condition",
  "no-control-regex", "no-dupe-args", "no-dupe-class-members", "no-dupe-else-if", "no-dupe-keys",
  "no-duplicate-case", "no-empty", "no-eval", "no-fallthrough", "no-func-assign", "no-implied-eval",
  "no-import-assign", "no-invalid-regexp", "no-loss-of-precision", "no-redeclare", "no-self-assign",
  "no-self-compare", "no-shadow-restricted-names", "no-sparse-arrays", "no-this-before-super", "no-undef",
  "no-unmodified-loop-condition", "no-unreachable", "no-unsafe-finally", "no-unsafe-negation",
  "no-unused-vars", "no-useless-catch", "no-var", "prefer-const",
  "require-yield", "use-isnan", "valid-typeof",
];

export default [
  {
    files: ["src/halter/gateway/web/*.js"],
    languageOptions: { globals: Object.fromEntries(browser.map((name) => [name, "readonly"])) },
    rules: Object.fromEntries(rules.map((name) => [name, "error"])),
  },
];
