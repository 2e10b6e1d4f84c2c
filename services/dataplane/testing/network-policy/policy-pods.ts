import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';

import { HOST_MAC } from '@podwire/shared/attachment/names';

import { frame } from '../frames.js';
import { addPod, run } from '../kernels.js';

/** Pods of a node as namespaces, and a host outside; packets go from and to them as frames. */

const BITS = { 4: 32, 6: 128 } as const;

/** A pod, or the host outside, with an address of each family. */
export interface ProbedEnd {
  readonly name: string;
  /** Its interface of the node. */
  readonly device: string;
  readonly addresses: Readonly<Record<4 | 6, string>>;
}

export const PODS: readonly ProbedEnd[] = ['a', 'b', 'c', 'd', 'e'].map((letter, at) => ({
  name: `pod-${letter}`,
  device: `podw${letter}`,
  addresses: { 4: `10.65.0.${at + 1}`, 6: `fd00:65::${at + 1}` },
}));

export const OUTSIDE: ProbedEnd = {
  name: 'outside',
  device: 'uplink',
  addresses: { 4: '198.51.100.1', 6: '2001:db8:9::1' },
};

export const NODE_ADDRESSES = { 4: '192.0.2.1', 6: '2001:db8::1' } as const;

/** Wires the namespaces, with permanent neighbours; their kernels do not answer. */
export function wireEnds(ends: readonly ProbedEnd[] = [...PODS, OUTSIDE]): void {
  run('sysctl', '-qw', 'net.ipv4.ip_forward=1', 'net.ipv6.conf.all.forwarding=1', 'net.ipv4.conf.all.rp_filter=0');
  const commands: string[] = [];
  for (const [at, { name, device, addresses }] of ends.entries()) {
    addPod(name);
    const mac = `02:00:00:00:00:0${at}`;
    commands.push(
      `link add ${device} type veth peer name eth0 netns ${name} address ${mac}`,
      `link set ${device} address ${HOST_MAC} up`,
      ...([4, 6] as const).flatMap((family) => [
        `route add ${addresses[family]}/${BITS[family]} dev ${device}`,
        `neigh replace ${addresses[family]} lladdr ${mac} dev ${device} nud permanent`,
        `address replace ${NODE_ADDRESSES[family]}/${BITS[family]} dev ${device}${family === 6 ? ' nodad' : ''}`,
      ]),
    );
  }
  run('sh', '-c', `ip -batch - <<'END'\n${commands.join('\n')}\nEND`);
  for (const { name, addresses } of ends) {
    const inside = ['link set eth0 up', ...([4, 6] as const).map((family) => addressOf(addresses[family], family))];
    run('sh', '-c', `ip -n ${name} -batch - <<'END'\n${inside.join('\n')}\nEND`);
    run(
      'ip',
      'netns',
      'exec',
      name,
      'nft',
      'table inet quiet { chain input { type filter hook input priority 0; policy drop; }; }',
    );
  }
}

function addressOf(address: string, family: 4 | 6): string {
  return `address add ${address}/${BITS[family]} dev eth0${family === 6 ? ' nodad' : ''}`;
}

/** One process with a packet socket in each namespace. */
const PROGRAM = `
import ctypes, json, os, select, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
sockets = {}
for name in sys.argv[1:]:
    with open('/run/netns/' + name) as f:
        if libc.setns(f.fileno(), 0): raise OSError(ctypes.get_errno(), name)
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    s.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)
    s.bind(('eth0', 3))
    s.setblocking(False)
    sockets[name] = s
names = {s: n for n, s in sockets.items()}
def drain(seconds, found):
    ready, _, _ = select.select(list(names), [], [], seconds)
    for s in ready:
        while True:
            try: data, address = s.recvfrom(65535)
            except BlockingIOError: break
            # 4: sent by this process.
            if address[2] != 4: found.append([names[s], data[14:].hex()])
    return len(ready) > 0
for line in sys.stdin:
    request = json.loads(line)
    found = []
    for name, data in request['send']:
        sockets[name].send(bytes.fromhex(data))
        drain(0, found)
    end = time.monotonic() + request['maxMs'] / 1000
    while time.monotonic() < end:
        if not drain(request['quietMs'] / 1000, found) and len(found) >= request['atLeast']: break
    print(json.dumps(found), flush=True)
`;

/** A packet from one of the ends, and whether it should arrive. */
export interface Probe {
  readonly from: string;
  readonly packet: Buffer;
  /** The namespace where it is looked for. */
  readonly to: string;
}

/** The time without a packet after which the forwarded ones have arrived. */
const QUIET_MS = 40;

/** How long packets that must arrive are waited for. */
const MAX_MS = 10_000;

/** Sends packets, and says which of them arrive. */
export class Prober {
  readonly #child: ChildProcess;
  readonly #lines: AsyncIterator<string>;

  constructor(names: readonly string[] = [...PODS, OUTSIDE].map(({ name }) => name)) {
    this.#child = spawn('python3', ['-c', PROGRAM, ...names], { stdio: ['pipe', 'pipe', 'inherit'] });
    if (!this.#child.stdout) throw new Error('a pipe is missing');
    this.#lines = createInterface({ input: this.#child.stdout })[Symbol.asyncIterator]();
  }

  /**
   * Sends packets, whose parts after the IP header must differ.
   * @param expectedCount - how many arrive at least, if none is lost: for them it waits
   * @returns whether each has arrived
   */
  async send(probes: readonly Probe[], expectedCount = 0): Promise<boolean[]> {
    const send = probes.map(({ from, packet }) => [from, frame(HOST_MAC, packet).toString('hex')]);
    const request = { send, atLeast: expectedCount, quietMs: QUIET_MS, maxMs: MAX_MS };
    this.#child.stdin?.write(`${JSON.stringify(request)}\n`);
    const { value = '[]' } = await this.#lines.next();
    const arrived: readonly (readonly [string, string])[] = JSON.parse(value);
    const seen = new Set(arrived.map(([name, packet]) => `${name} ${partBehindIp(packet)}`));
    return probes.map(({ to, packet }) => seen.has(`${to} ${partBehindIp(packet.toString('hex'))}`));
  }

  async stop(): Promise<void> {
    const ended = once(this.#child, 'exit');
    this.#child.stdin?.end();
    await ended;
  }
}

/** Routers change the IP header. */
function partBehindIp(packet: string): string {
  return packet.slice(packet.startsWith('6') ? 80 : 40);
}
