// Words for what forkpoint did and why. A test holds every reason, cause and outcome of the engine to have one here.

import { name } from "./format.js";

/** What was done to a request. */
export const PLANS = {
  passthrough: "Left alone",
  aligned: "Aligned",
  forked: "Forked",
};

/** What was done to a request, as a sentence about the children of a fan-out. */
export const PLAN_OF_CHILDREN = {
  passthrough: "Left alone, byte for byte",
  aligned: "Aligned, and not forked",
  forked: "Forked onto their parent's prompt",
};

/** Why it was that and not more: a clause that follows the plan. */
export const REASONS = {
  none: "",
  // Left alone.
  endpoint: "it is not a Messages call",
  body_too_large: "its body exceeds limits.body_bytes",
  held_requests: "limits.held_requests is reached",
  held_bytes: "limits.held_bytes is reached",
  trailers: "it announces trailers",
  content_encoding: "its compression cannot be read",
  not_json: "its body is not JSON that can be read",
  signed: "its body is signed",
  no_credential: "it brings no credential",
  observe: "the mode is observe",
  oauth: "it comes from a consumer login",
  ambiguous: "it can be read in two ways",
  unknown_thread: "it continues an answer that is not known",
  unknown_parent: "it names a parent that is not known",
  refused: "the upstream refused the rewritten request",
  lost_prefix: "the prefix of its thinking is not known",
  internal: "a bug in forkpoint",
  // Aligned, and no breakpoint was added.
  align: "the mode is align",
  not_a_child: "it is not a sub-agent",
  client_fork: "its client has forked it itself",
  automatic_cache: "the upstream caches by itself",
  malformed_marker: "a marker of the client is malformed",
  illegal_markers: "the client's markers will be refused",
  one_shot: "nothing suggests a next turn",
  seldom_continues: "such conversations seldom continue",
  never_read: "its prefix changes on every turn",
  below_minimum: "its prefix is too short to be cached",
  no_slot: "all four breakpoints are in use",
  hour: "a marker would have to last an hour",
  no_legal_block: "no block there can carry a marker",
  // Aligned, and not forked.
  nested: "its parent is itself a child",
  compaction: "it begins with a summary, or asks for one",
  version: "its parent's API version differs",
  unknown_tool: "its tool is not known to start agents",
  holdout: "its fan-out is held out to compare",
  stood_down: "forking cost more than it saved",
  late: "its parent's answer had not ended",
  unsealed: "its own call was not known yet",
  prefill: "its parent's history ends with a prefill",
  shape: "its first message cannot be split",
  model: "its parent's model differs",
  no_tools: "it has no tools",
  tools_differ: "it has tools that its parent lacks",
  tools_subset: "it has fewer tools than its parent",
  thinking: "its parent's thinking differs",
  tool_choice: "its parent's tool_choice differs",
  output_config: "its parent's output_config differs",
  output_format: "its parent's output_format differs",
  context_management: "its parent's context_management differs",
  speed: "its parent's speed differs",
  mcp_servers: "its parent's mcp_servers differ",
  container: "its parent's container differs",
  unknown_field: "an unknown field differs from its parent",
  media: "it has media that its parent lacks",
  specialist: "it is an agent of a special kind",
  teammate: "it joins a team",
  isolation: "it runs elsewhere",
  coordinator: "its session is excluded",
  too_large: "forked, its body would be too large",
  window: "forked, it would exceed the window",
  context_share: "forked, it would fill too much context",
  cost: "forking would cost more than allowed",
  unlearned: "how long such children live is not known",
  cost_unknown: "what forking would cost is not known",
  store_full: "children that still work fill the store",
  // Not sent at all.
  connect: "CONNECT is refused",
  upgrade: "upgrades are refused",
  ambiguous_length: "its length is ambiguous",
  target: "its target is malformed",
  thread_mismatch: "its thread is held otherwise than it says",
  client_body: "the client broke off its body",
  client_stalled: "the client stopped sending",
  connections: "limits.connections is reached",
  upstream_unreachable: "the upstream could not be reached",
  upstream_connect_timeout: "connecting to the upstream took too long",
  upstream_silent: "the upstream stayed silent",
  upstream_broke: "the upstream broke off",
};

/** What became of a request at the gate. */
export const GATE = {
  unneeded: "nothing to wait for",
  led: "leads: it writes what its siblings read",
  overtook: "leads: it streams, and overtook one that does not",
  released: "waited for its leader, and reads what that wrote",
  succeeded: "leads: the one before it came to nothing",
  presumed: "waited as long as its leader should have taken",
  timed_out: "waited as long as it may, and went",
  json_given_up: "did not wait: its leader does not stream",
  too_slow: "did not wait: answers to such a prompt begin too late",
  full: "did not wait: too many do already",
  client_left: "its client left while it waited",
};

export const LEADS = new Set(["led", "overtook", "succeeded"]);

/** Why cached tokens were not read: each follows "because" and a colon alike. */
export const CAUSES = {
  tools: "the tools changed",
  system: "the system or the speed changed",
  model: "the model changed",
  thinking: "thinking or effort changed",
  tool_choice: "tool_choice changed",
  betas: "the betas changed",
  messages: "the history was changed",
  spelling: "the same was spelt differently",
  ttl_expired: "the cache entry expired",
  below_minimum: "the prefix is too short to cache",
  lookback: "no breakpoint is near the entry",
  not_yet_visible: "the entry was still being written",
  unknown: "something not seen here changed",
};

/** How an exchange ended, if not well. */
export const ENDINGS = {
  complete: "",
  client_left: "the client left",
  upstream_broke: "the upstream broke off",
  refused: "answered by forkpoint itself",
};

/** What changes in a prompt from turn to turn. */
export const VOLATILE = {
  date: "a date",
  clock: "a time",
  directory: "a path",
  git: "the state of a repository",
  counter: "a number",
  id: "an id",
  other: "text",
};

/** What was done to a forked child beside putting it on its parent's prefix. */
export const NOTES = {
  own_line: "its own attribution line",
  line_left_out: "attribution line left out",
  instructions: "its system prompt in its first message",
  hoisted: "a system message moved along",
  tools: "a note on its tools",
  report: "a note on how to report",
  worktree: "a note that it works elsewhere",
  partial: "the parent's turn up to its own call",
  snapshot: "a question to a turn",
  compacted: "has replaced its first message since",
  new_instructions: "has changed its system prompt since",
  changed_fields: "has changed fields since",
};

/** The words for a word of the engine, or that word itself if a later version has one more. */
export const inWords = (words, word) => (Object.hasOwn(words, word) ? words[word] : name(word));

/** Why an exchange has no whole answer, as in the log; nothing if it has one. */
export function causeInWords(x) {
  if (x.duration_ms === undefined) return "";
  if (x.fault !== undefined) return inWords(REASONS, x.fault);
  const [status, error] = [x.status >= 400 ? String(x.status) : "", x.error === undefined ? "" : name(x.error)];
  return [status, error, inWords(ENDINGS, x.ending)].filter(Boolean).join(" ");
}

export function planInWords(plan, reason) {
  const why = inWords(REASONS, reason);
  return `${inWords(PLANS, plan)}${why ? `: ${why}` : ""}`;
}
