import { createHash } from 'node:crypto';

import type { Family } from '@podwire/shared/net/address';
import type { Mac } from '@podwire/shared/net/mac';

/** First byte of every tunnel's MAC address: locally administered, unicast. */
const FIRST_BYTE = '66';

const SUFFIX: Readonly<Record<Family, string>> = { 4: '', 6: '-v6' };

/**
 * MAC address of a node's VXLAN device for a family: 0x66, then the first five bytes of SHA-1(node name, for IPv6 with `-v6`
 * behind it). It is Calico's, so that every node can compute every other's, of either kind.
 */
export function tunnelMac(nodeName: string, family: Family): Mac {
  const digest = createHash('sha1').update(`${nodeName}${SUFFIX[family]}`).digest('hex');
  const bytes = digest.slice(0, 10).match(/../g) ?? [];
  return [FIRST_BYTE, ...bytes].join(':');
}
