import { CniDataplaneService, type CniDataplaneServer } from '@podwire/proto/calico/cni/cnibackend';
import type { RpcService } from '@podwire/shared/rpc/server';
import type { Unary } from '@podwire/shared/rpc/unary';

import { cniAdd } from './add.js';
import { cniDel, type CniParts } from './del.js';

/** Calico's contract for external dataplanes. */
export function cniService(parts: CniParts, unary: Unary): RpcService {
  const implementation: CniDataplaneServer = {
    add: unary(CniDataplaneService.add, cniAdd(parts)),
    del: unary(CniDataplaneService.del, cniDel(parts)),
  };
  return { name: 'cni.CniDataplane', definition: CniDataplaneService, implementation };
}
