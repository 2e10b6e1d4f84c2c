import { performance } from 'node:perf_hooks';
import process from 'node:process';

import { attributesFor } from '@podwire/ipam/addresses/allocate/allocate';
import { EmbeddedStore } from '@podwire/ipam/engine/embedded/embedded-store';
import type { Store } from '@podwire/ipam/engine/store';
import { makeBlock, type Block } from '@podwire/ipam/records/block';
import { RecordKeys } from '@podwire/ipam/records/json/keys';
import { writeRecord } from '@podwire/ipam/records/json/registry';
import type { RecordValue } from '@podwire/ipam/records/view';
import { takeAddress } from '@podwire/ipam/testing/records';
import { WatchKind, WatchPhase, WatchServiceService } from '@podwire/proto/podwire/ipam/v1/watch';
import { Peer } from '@podwire/shared/rpc/client';

import { median, type Figure } from '../figure.js';
import { IpamCaller, untilServing } from './load.js';
import { Place, startIpam } from './processes.js';

const BLOCKS = 10_000;
const ADDRESSES_PER_BLOCK = 25;
const ROUNDS = 5;

/** How long a new watcher waits for all routes of a large cluster, decoded; each round with a new connection. */
export async function measureWatch(report: (line: string) => void): Promise<Figure[]> {
  const place = new Place();
  try {
    const store = await EmbeddedStore.open({ directory: place.path('store'), pid: process.pid });
    await writeBlocks(store);
    await store.close();
    const ipam = await startIpam(place, { PODWIRE_IPAM_STORE_DIRECTORY: place.path('store') });
    try {
      const caller = new IpamCaller(ipam.socket);
      await untilServing(caller);
      caller.close();
      const seconds: number[] = [];
      for (let round = 0; round < ROUNDS; round++) seconds.push(await receiveRoutes(ipam.socket));
      const texts = seconds.map((one) => one.toFixed(2)).join(', ');
      report(
        `snapshot of the routes to ${BLOCKS} blocks in ${texts} s, encoded in the first; ${ipam.process.residentMib().toFixed(0)} MiB resident`,
      );
      const value = median(seconds);
      return [{ name: 'ipam.scale.watch_10k_blocks_s', value, unit: 's', better: 'lower', goal: 2 }];
    } finally {
      await ipam.process.stop();
    }
  } finally {
    place.remove();
  }
}

/** @returns the seconds from the call to the end of the snapshot */
async function receiveRoutes(socket: string): Promise<number> {
  const peer = new Peer('podwire-ipam', `unix:${socket}`);
  try {
    const startMs = performance.now();
    const request = { kinds: [WatchKind.WATCH_KIND_ROUTES], resumeToken: '' };
    const names = new Set<string>();
    for await (const { phase, changes } of peer.stream(
      WatchServiceService.watch,
      request,
      new AbortController().signal,
    )) {
      for (const { name } of changes) names.add(name);
      if (phase === WatchPhase.WATCH_PHASE_SNAPSHOT_COMPLETE) break;
    }
    const seconds = (performance.now() - startMs) / 1000;
    if (names.size !== BLOCKS) throw new Error(`the snapshot had ${names.size} routes`);
    return seconds;
  } finally {
    peer.close();
  }
}

async function writeBlocks(store: Store): Promise<void> {
  const keys = new RecordKeys('/calico');
  const nowMs = Date.now();
  for (let first = 0; first < BLOCKS; first += 100) {
    const records = Array.from({ length: 100 }, (_, index) => blockRecords(first + index, nowMs)).flat();
    const puts = records.map((record) => {
      return { key: keys.of(record), value: writeRecord(record, undefined).bytes };
    });
    await store.commit({ comparisons: [], puts, deletes: [] }, new AbortController().signal);
  }
}

function blockRecords(index: number, nowMs: number): RecordValue[] {
  const owner = { kind: 'host', name: `node-${index}` } as const;
  const prefix = { family: 4, value: (10n << 24n) + BigInt(index) * 64n, length: 26 } as const;
  let block: Block = makeBlock({ prefix, owner, nowMs });
  for (let address = 0; address < ADDRESSES_PER_BLOCK; address++) {
    const containerId = `${index}-${address}-`.padEnd(64, 'f');
    const identity = {
      attachment: { network: 'podwire', containerId, interfaceName: 'eth0' },
      nodeName: owner.name,
      pod: { namespace: 'default', name: `web-${index}-${address}`, uid: '' },
      netns: undefined,
    };
    block = takeAddress(block, attributesFor(identity, nowMs))?.block ?? block;
  }
  return [
    { kind: 'block', value: block },
    { kind: 'affinity', value: { owner, block: prefix, state: 'confirmed' } },
  ];
}
