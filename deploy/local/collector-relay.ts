import { createServer, type IncomingMessage, type Server } from 'node:http';
import { buffer } from 'node:stream/consumers';

export interface CollectorRelayOptions {
  /** URL of the collector, without `/v1/traces`. */
  readonly url: URL;
  /** Called with a sentence whenever the outcome of the requests changes. */
  readonly report: (text: string) => void;
}

/** Headers that describe the body. */
const BODY_HEADERS = ['content-type', 'content-encoding'];

const TIMEOUT_MS = 10_000;

/**
 * Passes OTLP/HTTP requests of the demonstration on to a collector, and answers as the collector does. A collector that cannot
 * be reached is a 503, which exporters retry.
 */
export function collectorRelay({ url, report }: CollectorRelayOptions): Server {
  let reported = '';
  const reportOnce = (text: string): void => {
    if (text !== reported) report(text);
    reported = text;
  };
  return createServer((request, response) => {
    passOn(request, url).then(
      ({ status, type, body }) => {
        const isGood = status >= 200 && status < 300;
        reportOnce(
          `collector ${url.href}: ${isGood ? 'receives traces and metrics' : `answers with status ${status}`}`,
        );
        response.writeHead(status, { 'content-type': type }).end(body);
      },
      (error: unknown) => {
        reportOnce(`collector ${url.href}: cannot be reached: ${reasonOf(error)}; check the URL of --otlp`);
        response.writeHead(503).end();
      },
    );
  });
}

async function passOn(request: IncomingMessage, url: URL): Promise<{ status: number; type: string; body: Uint8Array }> {
  const headers = BODY_HEADERS.flatMap((name): [string, string][] => {
    const value = request.headers[name];
    return typeof value === 'string' ? [[name, value]] : [];
  });
  const answer = await fetch(`${url.href.replace(/\/$/, '')}${request.url ?? ''}`, {
    method: 'POST',
    headers,
    body: await buffer(request),
    signal: AbortSignal.timeout(TIMEOUT_MS),
  });
  const type = answer.headers.get('content-type') ?? 'application/x-protobuf';
  return { status: answer.status, type, body: new Uint8Array(await answer.arrayBuffer()) };
}

/** `fetch` states the reason as the cause of its own error. */
function reasonOf(error: unknown): string {
  const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error;
  return cause instanceof Error ? cause.message : String(cause);
}
