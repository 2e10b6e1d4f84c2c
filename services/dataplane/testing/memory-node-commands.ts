import type { KernelRoute } from '../routes/observed.js';
import type { MemoryNode } from './memory-node-state.js';

/**
 * Runs a command of another program on a fake node: the part of `ip`, `bridge` and `sysctl` that tests use, in the same syntax.
 * @throws Errno for a refusal of the kernel; Error for an unknown command
 */
export function runNodeCommand(node: MemoryNode, command: string): void {
  const words = command.split(' ');
  const [program, object, verb = ''] = words;
  const rest = words.slice(3);
  if (program === 'sysctl') {
    const [key = '', value = ''] = verb.split('=');
    node.writeSysctl(key.replaceAll('.', '/'), value);
    return;
  }
  if (program === 'bridge') {
    forwarding(node, verb, rest);
    return;
  }
  if (object === 'link') {
    link(node, verb, rest);
    return;
  }
  if (object === 'address') {
    address(node, verb, rest);
    return;
  }
  if (object === 'route') {
    route(node, verb, words.slice(3));
    return;
  }
  if (object === 'neighbour') {
    neighbour(node, verb, rest);
    return;
  }
  throw new Error(`unknown command: ${command}`);
}

/** The word after a given one. */
function valueAfter(words: readonly string[], word: string): string | undefined {
  const place = words.indexOf(word);
  return place < 0 ? undefined : words[place + 1];
}

function link(node: MemoryNode, verb: string, words: readonly string[]): void {
  const [name = ''] = words;
  const mtu = valueAfter(words, 'mtu');
  const mac = valueAfter(words, 'address');
  if (verb === 'delete') {
    node.deleteDevice(name);
    return;
  }
  if (verb === 'set') {
    const up = words.includes('up') ? { up: true } : words.includes('down') ? { up: false } : {};
    node.setDevice(name, {
      ...up,
      ...(mac === undefined ? {} : { mac }),
      ...(mtu === undefined ? {} : { mtuBytes: Number(mtu) }),
    });
    return;
  }
  const kind = valueAfter(words, 'type') ?? null;
  const vxlan = {
    kind: 'vxlan',
    vni: Number(valueAfter(words, 'id')),
    port: Number(valueAfter(words, 'dstport')),
    local: valueAfter(words, 'local'),
    parent: valueAfter(words, 'dev'),
    remote: valueAfter(words, 'remote'),
    isLearning: !words.includes('nolearning'),
    isExternal: false,
  } as const;
  node.addDevice({
    name,
    kind,
    mac: mac ?? '02:00:00:00:00:01',
    mtuBytes: Number(mtu ?? 1500),
    up: false,
    alias: null,
    tunnel: kind === 'vxlan' ? vxlan : undefined,
  });
}

function address(node: MemoryNode, verb: string, words: readonly string[]): void {
  const entry = { address: words[0] ?? '', device: valueAfter(words, 'dev') ?? '' };
  if (verb === 'add') node.addAddress(entry);
  else node.deleteAddress(entry);
}

function route(node: MemoryNode, verb: string, words: readonly string[]): void {
  const isBlackhole = words[0] === 'blackhole';
  const destination = words[isBlackhole ? 1 : 0] ?? '';
  const value: KernelRoute = {
    destination,
    type: isBlackhole ? 'blackhole' : 'unicast',
    device: valueAfter(words, 'dev'),
    gateway: valueAfter(words, 'via'),
    onlink: words.includes('onlink'),
    source: valueAfter(words, 'src'),
    protocol: Number(valueAfter(words, 'proto') ?? 3),
    metric: Number(valueAfter(words, 'metric') ?? (destination.includes(':') ? 1024 : 0)),
  };
  switch (verb) {
    case 'add': {
      node.addRoute(value);
      return;
    }
    case 'append': {
      node.appendRoute(value);
      return;
    }
    case 'replace': {
      node.replaceRoute(value);
      return;
    }
    default: {
      const found = node.routes.find(
        (candidate) =>
          candidate.destination === destination &&
          candidate.metric === value.metric &&
          (valueAfter(words, 'proto') === undefined || candidate.protocol === value.protocol),
      );
      node.deleteRoute(found ?? value);
      return;
    }
  }
}

function neighbour(node: MemoryNode, verb: string, words: readonly string[]): void {
  const entry = { address: words[0] ?? '', device: valueAfter(words, 'dev') ?? '' };
  if (verb === 'replace') node.setNeighbour({ ...entry, mac: valueAfter(words, 'lladdr') ?? '' });
  else node.deleteNeighbour(entry);
}

function forwarding(node: MemoryNode, verb: string, words: readonly string[]): void {
  const entry = {
    mac: words[0] ?? '',
    device: valueAfter(words, 'dev') ?? '',
    nodeAddress: valueAfter(words, 'dst') ?? '',
  };
  if (verb === 'append') node.appendForwarding(entry);
  else if (verb === 'replace') node.setForwarding(entry);
  else node.deleteForwarding(entry);
}
