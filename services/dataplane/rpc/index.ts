import { NodeServiceService, type NodeServiceServer } from '@podwire/proto/podwire/dataplane/v1/node';
import { PodServiceService, type PodServiceServer } from '@podwire/proto/podwire/dataplane/v1/pod';
import type { RpcService } from '@podwire/shared/rpc/server';
import type { Unary } from '@podwire/shared/rpc/unary';

import type { NodeOverview } from '../node-overview.js';
import { getNodeStatus } from '../node/node-rpc.js';
import type { GarbageCollector } from '../pods/garbage.js';
import type { Dataplane } from '../pods/pods.js';
import { attachPod } from './attach-pod.js';
import { checkPod } from './check-pod.js';
import type { CniParts } from './cni/del.js';
import { cniService } from './cni/index.js';
import { collectGarbage } from './collect-garbage.js';
import { detachPod } from './detach-pod.js';
import { listPods } from './list-pods.js';
import { repairPod } from './repair-pod.js';
import type { Recorded } from './wire-wanted.js';

/** What the methods act on. */
export interface ServedParts extends CniParts {
  readonly dataplane: Dataplane;
  readonly garbage: GarbageCollector;
  readonly overview: () => NodeOverview;
  readonly recorded: Recorded;
}

/** Every method that podwire-dataplane serves. */
export function dataplaneServices(parts: ServedParts, unary: Unary): readonly RpcService[] {
  const { dataplane, garbage, overview, recorded } = parts;
  const node: NodeServiceServer = { getNodeStatus: unary(NodeServiceService.getNodeStatus, getNodeStatus(overview)) };
  const pods: PodServiceServer = {
    attachPod: unary(PodServiceService.attachPod, attachPod(dataplane)),
    detachPod: unary(PodServiceService.detachPod, detachPod(dataplane)),
    checkPod: unary(PodServiceService.checkPod, checkPod(dataplane, recorded)),
    repairPod: unary(PodServiceService.repairPod, repairPod(dataplane, recorded)),
    collectGarbage: unary(PodServiceService.collectGarbage, collectGarbage(garbage)),
    listPods: unary(PodServiceService.listPods, listPods(dataplane)),
  };
  return [
    { name: 'podwire.dataplane.v1.PodService', definition: PodServiceService, implementation: pods },
    { name: 'podwire.dataplane.v1.NodeService', definition: NodeServiceService, implementation: node },
    cniService(parts, unary),
  ];
}
