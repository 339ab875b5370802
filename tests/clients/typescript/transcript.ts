// What one agent saw through the SDK, in the form that the driver compares (see ../drive.py).

import Anthropic, { type ClientOptions } from "@anthropic-ai/sdk";

export const KEY = "sk-test-forkpoint@clients";

type Step = { step: string } & Record<string, unknown>;
type Response = { status: number; headers: [string, string][] };

// Steps in the order the agent took them, and every HTTP response that came, retried ones included.
export class Transcript {
  readonly steps: Step[] = [];
  readonly responses: Response[] = [];

  // Fetches, and notes the response.
  readonly fetch: typeof globalThis.fetch = async (input, init) => {
    const response = await globalThis.fetch(input, init);
    this.responses.push({ status: response.status, headers: [...response.headers] });
    return response;
  };

  client(url: string | undefined, options: ClientOptions = {}): Anthropic {
    return new Anthropic({ apiKey: KEY, baseURL: url, fetch: this.fetch, ...options });
  }

  // Notes a message and hands it on.
  message<M extends { id: string; _request_id?: string | null }>(message: M): M {
    // The SDK hides the id from JSON, so it is noted beside the message.
    const { _request_id: requestId } = message;
    this.step("message", requestId ? { message, request_id: requestId } : { message });
    return message;
  }

  event(event: unknown): void {
    this.step("event", { event });
  }

  value(name: string, value: unknown): void {
    this.step("value", { name, value });
  }

  // Notes what the attempt throws; one that does not throw leaves no step, which the driver misses.
  async errors(attempt: () => Promise<unknown>): Promise<void> {
    try {
      await attempt();
    } catch (error) {
      if (!(error instanceof Error)) throw error;
      const api = error instanceof Anthropic.APIError ? error : undefined;
      const cause = error.cause instanceof Error ? error.cause : undefined;
      this.step("error", {
        class: error.constructor.name,
        name: error.name,
        cause: cause ? `${cause.name}: ${cause.message}` : null,
        status: api?.status ?? null,
        type: api?.type ?? null,
        api_message: api?.apiMessage ?? null,
        request_id: api?.requestID ?? null,
        body: api?.error ?? null,
        message: error.message,
      });
    }
  }

  // The steps keep what they were given by reference, and the SDK goes on building its messages: hence the copy.
  private step(kind: string, fields: Record<string, unknown>): void {
    this.steps.push(JSON.parse(JSON.stringify({ step: kind, ...fields })));
  }
}
