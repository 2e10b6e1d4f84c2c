import { ClusterServiceService, ListNodeStatesResponse, NodeContact } from '@podwire/proto/podwire/ipam/v1/cluster';
import { ListPoolsResponse, PoolServiceService } from '@podwire/proto/podwire/ipam/v1/pool';
import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { fake, fakeNode, Fakes, pool } from '../../testing/ctl.js';

let fakes: Fakes;
beforeEach(() => {
  fakes = new Fakes();
});
afterEach(() => fakes.clear());

const serve = (node: ReturnType<typeof fakeNode>) => {
  const contact = NodeContact.NODE_CONTACT_CONNECTED;
  const nodes = ['n1', 'n2'].map((name) => ({ name, contact }));
  return fakes.serve(
    fake(ClusterServiceService.listNodeStates, () => ListNodeStatesResponse.fromPartial({ nodes })),
    fake(PoolServiceService.listPools, () => ListPoolsResponse.fromPartial({ pools: [pool] })),
    node,
  );
};

test('a refusal of the caller by all nodes is the only failure', async () => {
  const denial = new Failure('ACCESS_DENIED', 'a reader only reads');
  await serve(fakeNode('none', () => Buffer.alloc(0), denial));
  const { exitCode, stdout, stderr } = await fakes.podwirectl('connectivity', 'test');
  expect({ exitCode, stdout }).toEqual({ exitCode: 1, stdout: '' });
  expect(stderr).toMatch(/^podwirectl: connectivity test failed: a reader only reads .*\nhint: .* an operator.*\n$/);
});

test('a node that refuses is named', async () => {
  await serve(
    fakeNode(
      'n1',
      () => {
        throw new Failure('ACCESS_DENIED', 'the name belongs to another machine');
      },
      new Failure('UNREACHABLE', 'n2 is gone'),
    ),
  );
  const { exitCode, stdout } = await fakes.podwirectl('connectivity', 'test');
  expect(exitCode).toBe(4);
  expect(stdout).toContain('n1: no pod can be made on n1: the name belongs to another machine');
  expect(stdout).toContain('n2: no pod can be made on n2: n2 is gone');
});

test('the path of a pod to itself is not traced', async () => {
  expect(await fakes.podwirectl('trace', 'path', 'default/web-0', 'default/web-0')).toMatchObject({
    exitCode: 2,
    stderr: expect.stringContaining('name two pods'),
  });
});

test('a JUnit file that cannot be written is reported before any pod is made', async () => {
  let isAsked = false;
  const ask = () => {
    isAsked = true;
    return Buffer.alloc(0);
  };
  await serve(fakeNode('n1', ask));
  const { exitCode, stderr } = await fakes.podwirectl('connectivity', 'test', '--junit', fakes.folder);
  expect({ exitCode, isAsked }).toEqual({ exitCode: 2, isAsked: false });
  expect(stderr).toContain(`${fakes.folder}: cannot be written`);
});
