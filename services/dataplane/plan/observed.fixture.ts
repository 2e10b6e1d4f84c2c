import { desired, type Wanted, type WantedEnd } from '../wiring/network.js';
import { keyText, type Observed, type ObservedEnd, type ObservedLink, type ObservedRoute } from '../wiring/observed.js';
import type { PodNetwork } from './pod-network.js';

/** What is observed when everything is as wanted. Indexes: 11 on the host, 2 in the pod. */
export function asWanted(network: PodNetwork): Observed {
  const wanted: Wanted = desired(network);
  return {
    host: endAsWanted(wanted.host, { index: 11, peerIndex: 2 }),
    pod: endAsWanted(wanted.pod, { index: 2, peerIndex: 11 }),
  };
}

function endAsWanted(wanted: WantedEnd, indexes: Pick<ObservedLink, 'index' | 'peerIndex'>): ObservedEnd {
  const { txQueueLength = 1000, queueCount = 2 } = wanted.link;
  const queues = { txQueueLength, queueCount };
  return {
    link: { ...wanted.link, ...queues, ...indexes, kind: 'veth', alias: wanted.alias ?? null, up: true, running: true },
    addresses: wanted.addresses,
    routes: wanted.routes.map((route): ObservedRoute => {
      return { ...route, deviceAlias: wanted.alias ?? null, unicast: true };
    }),
    rules: wanted.rules,
    isLater: false,
    neighbours: wanted.neighbours.map(({ address, mac }) => ({ address, mac, permanent: true })),
    sysctls: new Map(wanted.sysctls.map(({ key, value }) => [keyText(key), value])),
  };
}

/** One end with some parts replaced; parts of the link by themselves. */
export function changed(end: ObservedEnd, change: Partial<ObservedEnd>, link: Partial<ObservedLink> = {}): ObservedEnd {
  if (!end.link) throw new Error('the end to change has a link');
  return { ...end, link: { ...end.link, ...link }, ...change };
}
