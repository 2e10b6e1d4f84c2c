import { readFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { join } from 'node:path';

import type { Commands } from '@podwire/ctl/clients/plugin-socket';

import { summarize } from './latency-summary.js';

export interface PageServerOptions {
  /** The folder of this file, with the build's results in `dist`. */
  readonly folder: string;
  readonly readCommands: () => Promise<Commands>;
  /** Called at each request for the data: an open page repeats it every two seconds. */
  readonly onViewed: () => void;
}

const FILES = {
  '/': { path: 'page/index.html', type: 'text/html' },
  '/page.css': { path: 'page/page.css', type: 'text/css' },
  '/view.js': { path: 'dist/page/view.js', type: 'text/javascript' },
  '/layout.js': { path: 'dist/page/layout.js', type: 'text/javascript' },
} as const;

/** Names of pods come from outside. The page shows them as text; should it ever fail to, no script of theirs runs. */
const HEADERS = {
  'content-security-policy':
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
  'x-content-type-options': 'nosniff',
  'cross-origin-resource-policy': 'same-origin',
  'referrer-policy': 'no-referrer',
  'cache-control': 'no-store',
};

interface Answer {
  readonly status: number;
  readonly type: string;
  readonly body: string;
  readonly headers?: Readonly<Record<string, string>>;
}

/** Serves the page and its data. The caller listens, at a loopback address only. */
export function pageServer(options: PageServerOptions): Server {
  const files = new Map<string, Answer>(
    Object.entries(FILES).map(([url, { path, type }]) => [
      url,
      { status: 200, type, body: readFileSync(join(options.folder, path), 'utf8') },
    ]),
  );
  return createServer((request, response) => {
    void answerTo(request, files, options).then((answer) => send(response, answer));
  });
}

async function answerTo(
  request: IncomingMessage,
  files: ReadonlyMap<string, Answer>,
  { readCommands, onViewed }: PageServerOptions,
): Promise<Answer> {
  const refused = refusal(request.method, request.headers.host, request.socket.localPort);
  if (refused) return refused;
  const [path = ''] = (request.url ?? '').split('?');
  if (path !== '/data.json') return files.get(path) ?? text(404, 'not found');
  onViewed();
  try {
    return { status: 200, type: 'application/json', body: JSON.stringify(summarize(await readCommands())) };
  } catch (error) {
    return text(503, error instanceof Error ? error.message : String(error));
  }
}

/** A foreign page can point a host name of its own at 127.0.0.1; the browser sends that name as the host. */
function refusal(method: string | undefined, host: string | undefined, port: number | undefined): Answer | undefined {
  if (method !== 'GET' && method !== 'HEAD')
    return { ...text(405, 'only GET and HEAD are allowed'), headers: { allow: 'GET, HEAD' } };
  if (port !== undefined && [`127.0.0.1:${port}`, `localhost:${port}`].includes(host ?? '')) return undefined;
  return text(403, `use http://127.0.0.1:${port ?? ''}/`);
}

function text(status: number, body: string): Answer {
  return { status, type: 'text/plain', body };
}

function send(response: ServerResponse, { status, type, body, headers }: Answer): void {
  response.writeHead(status, { ...HEADERS, 'content-type': `${type}; charset=utf-8`, ...headers }).end(body);
}
