import { DetachPodRequest } from '@podwire/proto/podwire/dataplane/v1/pod';
import { beforeEach, expect, test } from 'vitest';

import { recordingLog, testRegistry } from '../dataplane.fixture.js';
import { podNetwork } from '../plan/pod-network.fixture.js';
import { detachPod } from '../rpc/detach-pod.js';
import { MemoryKernel } from '../testing/memory-kernel.js';
import { Events } from './events.js';
import { Dataplane } from './pods.js';

let dataplane: Dataplane;

beforeEach(() => {
  const kernel = new MemoryKernel();
  dataplane = new Dataplane({ kernel, registry: testRegistry(), events: new Events(recordingLog().log) });
});

async function detach(rest: Partial<DetachPodRequest>) {
  const { attachment } = podNetwork('a');
  const call = { signal: new AbortController().signal };
  return detachPod(dataplane)(DetachPodRequest.fromPartial({ attachment, ...rest }), call);
}

test.each([undefined, '/run/netns/a', '/run/netns/gone'])('a namespace is asked for by nobody: %s', async (netns) => {
  expect(await detach({ netns })).toEqual({ removed: false });
});

test.each([
  ['', /empty/],
  ['relative', /not an absolute path/],
  ['/run/\0', /zero byte/],
])('a path that leads to no namespace is refused: %j', async (netns, reason) => {
  await expect(detach({ netns })).rejects.toMatchObject({
    code: 'INVALID_REQUEST',
    violations: [{ field: 'netns', reason: expect.stringMatching(reason) }],
  });
});
