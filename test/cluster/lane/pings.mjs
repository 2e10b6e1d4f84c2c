// Continuous pings between pods, and what they lost.

const INTERVAL_SECONDS = 0.02;

/** A ping from one pod to another, fifty times a second. */
class Ping {
  #machine;
  #to;
  #child;
  #output = '';

  constructor({ machine, from, to }) {
    this.#machine = machine;
    this.#to = to;
    const args = ['-n', '-D', '-i', String(INTERVAL_SECONDS), to];
    this.#child = machine.follow(['ip', 'netns', 'exec', namespaceOf(machine, from), 'ping', ...args]);
    this.#child.stdout.on('data', (data) => (this.#output += data));
  }

  /** @returns sent and lost packets, and the longest time between two answers */
  async stop() {
    const ended = new Promise((resolve) => this.#child.on('close', resolve));
    this.#machine.signal(new RegExp(`^ping .* ${this.#to.replaceAll('.', '\\.')} $`), 'SIGINT');
    await ended;
    const summary = /(\d+) packets transmitted, (\d+) received/.exec(this.#output);
    if (summary === null) throw new Error(`ping ${this.#to}: ${this.#output.slice(-300)}`);
    const [sent, received] = summary.slice(1).map(Number);
    const times = [...this.#output.matchAll(/^\[([\d.]+)\] \d+ bytes from/gm)].map(([, time]) => Number(time) * 1000);
    const gapMs = Math.max(...times.slice(1).map((time, index) => time - times[index]));
    return { sent, lost: sent - received, gapMs: Math.round(gapMs) };
  }
}

/** The name of a pod's network namespace, by its address. */
function namespaceOf(machine, address) {
  const command = `for name in $(ls /run/netns); do ip -n $name -o address | grep -qF " ${address}/" && echo $name; done; true`;
  const name = machine.run('sh', ['-c', command]).trim();
  if (!/^\S+$/.test(name)) throw new Error(`${address}: its network namespace: ${name || 'not found'}`);
  return name;
}

/** Pings from the first address on a node to one on each node. @param pods - of both nodes, with their addresses */
export function startPings(cluster, pods) {
  const [first, second] = cluster.nodes;
  const on = (node) => pods.filter(({ spec }) => spec.nodeName === node.name).map((pod) => cluster.addressesOf(pod)[0]);
  const [[from, sameNode], [otherNode]] = [on(first), on(second)];
  const pings = [sameNode, otherNode].map((to) => new Ping({ machine: first.machine, from, to }));
  return {
    /** @returns the sum of both */
    async stop() {
      const results = await Promise.all(pings.map((ping) => ping.stop()));
      const sum = (key) => results.reduce((total, result) => total + result[key], 0);
      return { sent: sum('sent'), lost: sum('lost'), gapMs: Math.max(...results.map(({ gapMs }) => gapMs)) };
    },
  };
}
