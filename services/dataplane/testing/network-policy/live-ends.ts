import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';

import { HOST_MAC } from '@podwire/shared/attachment/names';

import { run } from '../kernels.js';
import type { ProbedEnd } from './policy-pods.js';

/** Connections of sockets between wired ends, or the node itself, whose ends send all the time. */

/** The node in the place of an end. */
export const NODE = 'node';

/** One process with sockets in all namespaces. A connection's ends send a number each 5 ms. */
const PROGRAM = `
import ctypes, json, os, select, socket, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
own = open('/proc/self/ns/net')
KINDS = {'tcp': socket.SOCK_STREAM, 'udp': socket.SOCK_DGRAM}
def inside(name, family, kind):
    f = own if name == '${NODE}' else open('/run/netns/' + name)
    if libc.setns(f.fileno(), 0): raise OSError(ctypes.get_errno(), name)
    s = socket.socket(socket.AF_INET if family == 4 else socket.AF_INET6, KINDS[kind])
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    s.settimeout(20)
    return s
class End:
    def __init__(self, socket, sends):
        self.socket, self.sends, self.received, self.sent = socket, sends, set(), 0
        socket.setblocking(False)
def serve(ends):
    while True:
        for end in ends:
            try:
                if end.sends and end.socket.send(struct.pack('!Q', end.sent)) == 8: end.sent += 1
            except OSError: pass
            try:
                while True:
                    data = end.socket.recv(8)
                    if len(data) < 8: break
                    end.received.add(data)
            except OSError: pass
        time.sleep(0.005)
flows = {}
def connect(r):
    server = inside(r['server'], r['family'], r['kind'])
    server.bind(('', r['port']))
    client = inside(r['client'], r['family'], r['kind'])
    if r['kind'] == 'tcp':
        server.listen()
        client.connect((r['address'], r['addressPort']))
        accepted, _ = server.accept()
    else:
        client.connect((r['address'], r['addressPort']))
        client.send(b'x')
        _, peer = server.recvfrom(8)
        server.connect(peer)
        accepted = server
        server.send(b'x')
        client.recv(8)
    flows[r['name']] = ends = [End(client, 'client' in r['senders']), End(accepted, 'server' in r['senders'])]
    threading.Thread(target=serve, args=(ends,), daemon=True).start()
    return client.getsockname()[1]
def count(r):
    return {n: [[e.sent, len(e.received)] for e in ends] for n, ends in flows.items()}
def quiet(r):
    for ends in flows.values():
        for end in ends: end.sends = False
for line in sys.stdin:
    request = json.loads(line)
    try: answer = {'value': {'connect': connect, 'count': count, 'quiet': quiet}[request['do']](request)}
    except Exception as error: answer = {'error': str(error)}
    print(json.dumps(answer), flush=True)
`;

interface Opened {
  readonly kind: 'tcp' | 'udp';
  readonly client: ProbedEnd | typeof NODE;
  readonly server: ProbedEnd | typeof NODE;
  readonly family: 4 | 6;
  /** Port of the server. */
  readonly port: number;
  /** Where the client connects to, if that is translated. */
  readonly via?: { readonly address: string; readonly port: number };
  /** The ends that send. Default: both. */
  readonly senders?: readonly ('client' | 'server')[];
}

/** Numbers that an end has sent, and numbers that arrived there. */
type Counts = readonly [sent: number, received: number];

export class LiveEnds {
  readonly #child: ChildProcess;
  readonly #lines: AsyncIterator<string>;

  constructor() {
    this.#child = spawn('python3', ['-c', PROGRAM], { stdio: ['pipe', 'pipe', 'inherit'] });
    if (!this.#child.stdout) throw new Error('a pipe is missing');
    this.#lines = createInterface({ input: this.#child.stdout })[Symbol.asyncIterator]();
  }

  /** Opens a connection, over which both ends have sent. @returns the port of its client */
  async connect(
    name: string,
    { client, server, via, senders = ['client', 'server'], ...rest }: Opened,
  ): Promise<number> {
    const { address = server === NODE ? '' : server.addresses[rest.family], port: addressPort = rest.port } = via ?? {};
    const [from, to] = [client, server].map((end) => (end === NODE ? NODE : end.name));
    const request = { do: 'connect', name, client: from, server: to, address, addressPort, senders, ...rest };
    return Number(await this.#ask(request));
  }

  /** The counts of the client and of the server, by connection. */
  async counts(): Promise<Readonly<Record<string, readonly [client: Counts, server: Counts]>>> {
    return JSON.parse(JSON.stringify(await this.#ask({ do: 'count' })));
  }

  /** Stops sending. */
  async quiet(): Promise<void> {
    await this.#ask({ do: 'quiet' });
  }

  async stop(): Promise<void> {
    const ended = once(this.#child, 'exit');
    this.#child.stdin?.end();
    await ended;
  }

  async #ask(request: object): Promise<unknown> {
    this.#child.stdin?.write(`${JSON.stringify(request)}\n`);
    const { value = '{}' } = await this.#lines.next();
    const { value: answer, error }: { readonly value?: unknown; readonly error?: string } = JSON.parse(value);
    if (error !== undefined) throw new Error(error);
    return answer;
  }
}

/** Gives wired ends their routes, and ends their silence. */
export function connectEnds(ends: readonly ProbedEnd[]): void {
  for (const { name } of ends) {
    const commands = [
      ...['169.254.1.1', 'fe80::1'].flatMap((gateway) => [
        `neigh replace ${gateway} lladdr ${HOST_MAC} dev eth0 nud permanent`,
        `route add default via ${gateway} dev eth0 onlink`,
      ]),
      'link set lo up',
    ];
    run('sh', '-c', `ip -n ${name} -batch - <<'END'\n${commands.join('\n')}\nEND`);
    run('ip', 'netns', 'exec', name, 'nft', 'flush', 'ruleset');
  }
}
