import type { Peer } from '@podwire/shared/rpc/client';

/**
 * Calico's plugin as far as its dataplane sees it: messages made and read by the field numbers of its contract alone
 * (calico.md 4.14), so that no file of ours is on both sides.
 */

/** Field number → value: text, number or boolean as they are, objects as nested messages, lists as repeated fields. */
export interface Fields {
  readonly [number: number]: Value | readonly Value[];
}

type Value = string | number | boolean | Fields;

export interface Reply {
  readonly successful: boolean;
  readonly errorMessage: string;
  readonly hostInterfaceName: string;
  readonly containerMac: string;
}

function varint(value: number | bigint): Buffer {
  const bytes: number[] = [];
  // Negative numbers of int32 travel as 64 bits.
  let rest = BigInt.asUintN(64, BigInt(value));
  do {
    bytes.push(Number(rest & 0x7fn) | (rest > 0x7fn ? 0x80 : 0));
    rest >>= 7n;
  } while (rest > 0n);
  return Buffer.from(bytes);
}

function field(number: number, value: Value): Buffer {
  if (typeof value === 'number' || typeof value === 'boolean') {
    return Buffer.concat([varint(number << 3), varint(Number(value))]);
  }
  const bytes = typeof value === 'string' ? Buffer.from(value) : encode(value);
  return Buffer.concat([varint((number << 3) | 2), varint(bytes.length), bytes]);
}

function encode(fields: Fields): Buffer {
  const parts = Object.entries(fields).flatMap(([number, value]) =>
    (Array.isArray(value) ? value : [value]).map((one: Value) => field(Number(number), one)),
  );
  return Buffer.concat(parts);
}

/** A reply: 1 is whether it was successful, 2 to 4 are texts, all shorter than 16 KiB. */
function decode(bytes: Buffer): Reply {
  const texts = new Map<number, string>();
  let successful = false;
  for (let at = 0; at < bytes.length;) {
    const key = bytes[at++]!;
    const first = bytes[at++]!;
    if (key === 8) successful = first === 1;
    else {
      const length = first < 0x80 ? first : (first & 0x7f) | (bytes[at++]! << 7);
      texts.set(key >> 3, bytes.toString('utf8', at, at + length));
      at += length;
    }
  }
  const text = (number: number) => texts.get(number) ?? '';
  return { successful, errorMessage: text(2), hostInterfaceName: text(3), containerMac: text(4) };
}

const method = (name: 'Add' | 'Del') => ({
  path: `/cni.CniDataplane/${name}`,
  requestStream: false as const,
  responseStream: false as const,
  requestSerialize: encode,
  requestDeserialize: () => ({}),
  responseSerialize: () => Buffer.alloc(0),
  responseDeserialize: decode,
});

const ADD = method('Add');
const DEL = method('Del');

/** More than the five seconds that the plugin gives it, within which a busy machine may not answer. */
const limits = () => ({ deadlineMs: Date.now() + 30_000 });

export class CalicoPlugin {
  readonly #peer: Peer;

  constructor(peer: Peer) {
    this.#peer = peer;
  }

  add(request: Fields): Promise<Reply> {
    return this.#peer.call(ADD, request, limits());
  }

  del(request: Fields): Promise<Reply> {
    return this.#peer.call(DEL, request, limits());
  }
}

/** What the plugin sends for a pod of Kubernetes: every field of the contract is in it. */
export function addRequest(pod: string, address: string, changes: Fields = {}): Fields {
  return {
    1: 'eth0',
    2: `/run/netns/${pod}`,
    3: `cali${pod}`,
    4: { 1: true, 2: 1400 },
    5: [{ 1: `${address}/26`, 2: '<nil>' }],
    6: ['0.0.0.0/0', '::/0'],
    7: {
      1: 'node--1-k8s-pod-eth0',
      2: 'default',
      3: [{ 1: 'app', 2: 'web' }],
      4: [{ 1: 'note', 2: 'hello' }],
      5: 'eth0',
      6: 'node-1',
      7: 'k8s',
      8: pod,
      9: [{ 1: 'http', 2: 'TCP', 3: 80, 4: 8080, 5: '192.0.2.1' }],
    },
    8: [{ 1: 'type', 2: 'grpc' }],
    ...changes,
  };
}

export function delRequest(pod: string, changes: Fields = {}): Fields {
  return { 1: 'eth0', 2: `/run/netns/${pod}`, 3: [{ 1: 'type', 2: 'grpc' }], ...changes };
}
