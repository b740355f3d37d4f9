// Tokens and costs, as events have them, and their sums: the same as `halter.models.types.Usage`.

export const NO_USAGE = { tokens: 0, cost: null };

/** The tokens and the cost of an event; the cost is in USD, and null if it is not known. */
export function usageOf(usage) {
  return { tokens: (usage?.input_tokens ?? 0) + (usage?.output_tokens ?? 0), cost: usage?.cost ?? null };
}

/** A sum has a cost only if all its parts have one; no tokens cost nothing. */
export function sum(one, other) {
  const [first, second] = [one, other].map(({ tokens, cost }) => cost ?? (tokens ? null : 0));
  return { tokens: one.tokens + other.tokens, cost: first === null || second === null ? null : first + second };
}
