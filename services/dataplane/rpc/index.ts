import { PodServiceService, type PodServiceServer } from '@podwire/proto/podwire/dataplane/v1/pod';
import type { RpcService } from '@podwire/shared/rpc/server';
import type { Unary } from '@podwire/shared/rpc/unary';

import type { Dataplane } from '../dataplane.js';
import { attachPod } from './attach-pod.js';
import { checkPod } from './check-pod.js';
import { detachPod } from './detach-pod.js';
import { listPods } from './list-pods.js';

/** Every method that podwire-dataplane serves. */
export function dataplaneServices(dataplane: Dataplane, unary: Unary): readonly RpcService[] {
  const pods: PodServiceServer = {
    attachPod: unary(PodServiceService.attachPod, attachPod(dataplane)),
    detachPod: unary(PodServiceService.detachPod, detachPod(dataplane)),
    checkPod: unary(PodServiceService.checkPod, checkPod(dataplane)),
    listPods: unary(PodServiceService.listPods, listPods(dataplane)),
  };
  return [{ name: 'podwire.dataplane.v1.PodService', definition: PodServiceService, implementation: pods }];
}
