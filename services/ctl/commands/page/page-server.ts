import { readFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { createRequire } from 'node:module';

import { Failure } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';

import { failureLine } from '../../output/words.js';
import type { PageData } from '../../page/data.js';

export interface PageServerOptions {
  /** Called at each request for the data: an open page repeats it every two seconds. */
  readonly read: () => Promise<PageData>;
  /** Work of the page's buttons, by the names of the buttons. */
  readonly actions?: Readonly<Record<string, () => Promise<void>>>;
}

const FILES = {
  '/': { path: 'index.html', type: 'text/html' },
  '/page.css': { path: 'page.css', type: 'text/css' },
  '/view.js': { path: 'dist/view.js', type: 'text/javascript' },
  '/layout.js': { path: 'dist/layout.js', type: 'text/javascript' },
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
  const { resolve } = createRequire(import.meta.url);
  const files = new Map<string, Answer>(
    Object.entries(FILES).map(([url, { path, type }]) => [
      url,
      { status: 200, type, body: readFileSync(resolve(`@podwire/ctl/page-files/${path}`), 'utf8') },
    ]),
  );
  return createServer((request, response) => {
    void answerTo(request, files, options).then((answer) => send(response, answer));
  });
}

async function answerTo(
  request: IncomingMessage,
  files: ReadonlyMap<string, Answer>,
  { read, actions = {} }: PageServerOptions,
): Promise<Answer> {
  const [path = ''] = (request.url ?? '').split('?');
  const action = Object.entries(actions).find(([name]) => path === `/actions/${name}`)?.[1];
  const refused = refusal(request, action ? ['POST'] : ['GET', 'HEAD']);
  if (refused) return refused;
  try {
    if (path === '/data.json') return { status: 200, type: 'application/json', body: JSON.stringify(await read()) };
    if (!action) return files.get(path) ?? text(404, 'not found');
    await action();
    return text(200, 'done');
  } catch (error) {
    return text(503, error instanceof Failure ? failureLine(error) : messageOf(error));
  }
}

/** The host of a request from this machine, or through a forwarded port. */
const LOOPBACK = /^(127\.0\.0\.1|localhost|\[::1\])(:\d+)?$/;

/**
 * A foreign page can point a host name of its own at 127.0.0.1: the browser sends that name as the host. To another port of this machine
 * a foreign page can send a POST, with an origin of its own.
 */
function refusal({ method = '', headers }: IncomingMessage, allowed: readonly string[]): Answer | undefined {
  const allow = allowed.join(', ');
  if (!allowed.includes(method)) return { ...text(405, `only ${allow} are allowed`), headers: { allow } };
  const { host = '', origin } = headers;
  if (!LOOPBACK.test(host)) return text(403, `host "${host}": is not this machine; use http://127.0.0.1 or localhost`);
  if (method === 'POST' && origin !== `http://${host}`) return text(403, 'only the page itself may send this');
  return undefined;
}

function text(status: number, body: string): Answer {
  return { status, type: 'text/plain', body };
}

function send(response: ServerResponse, { status, type, body, headers }: Answer): void {
  response.writeHead(status, { ...HEADERS, 'content-type': `${type}; charset=utf-8`, ...headers }).end(body);
}
