import type { MonitorEvent } from '@podwire/netlink';

import { isPodInterface, TUNNEL_DEVICES, type NodeChange } from '../../routes/observed.js';
import { toForwarding, toNeighbour, toSeenRoute } from '../node-observe.js';
import { MAIN_TABLE } from '../pod-observe.js';
import type { NodeLinks } from './node-links.js';

/** What an announcement means to whoever looks after the node. @returns undefined for what is none of the listener's business */
export function toChange(event: MonitorEvent, links: NodeLinks): NodeChange | undefined {
  if (event.object === 'overrun') return event;
  const { deleted } = event;
  switch (event.object) {
    case 'link': {
      const link = event.value;
      if (links.isGone(link.index)) {
        if (deleted) links.remove(link);
        return undefined;
      }
      const earlierName = links.podNameOf(link.index);
      const isPod = isPodInterface(link) || earlierName !== undefined;
      const isMeddledWith = deleted || links.isChangedPod(link);
      if (deleted) links.remove(link);
      else links.put(link);
      // One that was renamed by hand is known by its earlier name.
      if (isPod) return { object: 'pod-interface', name: earlierName ?? link.name, isMeddledWith };
      return { object: 'device', deleted, device: links.toDevice(link) };
    }
    case 'address': {
      const { linkIndex, address, scope } = event.value;
      const device = links.nameOf(linkIndex);
      return device === undefined || scope === 'link' ? undefined : { object: 'address', deleted, device, address };
    }
    case 'route':
      return event.value.table === MAIN_TABLE
        ? { object: 'route', deleted, route: toSeenRoute(event.value, links) }
        : undefined;
    case 'neighbour':
      return toNeighbourChange(event, links);
    case 'fdb': {
      const entry = isTunnel(event.value.linkIndex, links) ? toForwarding(event.value, links) : undefined;
      return entry && { object: 'forwarding', deleted, ...entry };
    }
  }
}

function toNeighbourChange(
  { deleted, value }: Extract<MonitorEvent, { object: 'neighbour' }>,
  links: NodeLinks,
): NodeChange | undefined {
  if (value.proxy || !isTunnel(value.linkIndex, links)) return undefined;
  const entry = deleted ? undefined : toNeighbour(value, links);
  if (entry) return { object: 'neighbour', deleted: false, ...entry };
  // One that is not permanent any more is not the one that was set.
  const device = links.nameOf(value.linkIndex) ?? '';
  return { object: 'neighbour', deleted: true, device, address: value.address, mac: value.mac ?? '' };
}

function isTunnel(index: number, links: NodeLinks): boolean {
  return TUNNEL_DEVICES.includes(links.nameOf(index) ?? '');
}
