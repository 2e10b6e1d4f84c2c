import { EncapsulationMode, GetPoolResponse, PoolServiceService, PoolState } from '@podwire/proto/podwire/ipam/v1/pool';

import { fake } from '../testing/ctl.js';

/** What several commands show. */

export const pool = {
  name: 'main',
  cidr: '10.65.0.0/16',
  blockSize: 26,
  vxlanMode: EncapsulationMode.ENCAPSULATION_MODE_CROSS_SUBNET,
  natOutgoing: true,
  state: PoolState.POOL_STATE_ACTIVE,
  utilization: {
    capacity: '65536',
    allocated: 65000n,
    free: '536',
    blocks: 1016n,
    cooling: 10n,
    reserved: '500',
    available: '36',
  },
};
export const foundPool = fake(PoolServiceService.getPool, () => GetPoolResponse.fromPartial({ pool }));
export const attributes = { namespace: 'default', pod: 'web-0', node: 'node-1', network: 'net', interface: 'eth0' };

/** The pod that has an address. */
export const holder = { handleId: 'net.c0ffee', attributes, sequenceNumber: 12n };
