import { NetlinkError, type Outcome, type Step } from '@podwire/netlink';
import { expect, test } from 'vitest';

import { renameLink } from './rename.js';

const refused = (code: 'EBUSY' | 'EEXIST'): Outcome => {
  const errno = code === 'EBUSY' ? 16 : 17;
  return {
    ok: false,
    error: new NetlinkError({ operation: 'link.set', object: 'foo', errno, kernelMessage: undefined }),
  };
};
const DONE: Outcome = { ok: true };

/** `?` behind a step whose failure ends nothing. */
function textOf(step: Step): string {
  if (step.type !== 'link.set') return step.type;
  return `${step.name ?? (step.up === true ? 'up' : 'down')}${step.optional === true ? '?' : ''}`;
}

/** A kernel before 6.2, by what it answers to each sequence; with the steps that it was asked for. */
function older(...answers: readonly (readonly Outcome[])[]) {
  const asked: string[] = [];
  const left = [...answers];
  const sequence = (steps: readonly Step[]): Promise<Outcome[]> => {
    asked.push(...steps.map(textOf));
    return Promise.resolve([...(left.shift() ?? [])]);
  };
  return { asked, namespace: { sequence } };
}

const link = { index: 7, name: 'podw1' };

test('a link that is up is set down for its new name, and up again', async () => {
  const { asked, namespace } = older([refused('EBUSY')], [DONE, DONE, DONE]);
  await renameLink(namespace, link);
  expect(asked).toEqual(['podw1', 'down', 'podw1?', 'up']);
});

test('a link is up again where the name cannot be had after all, and the refusal is told', async () => {
  const { asked, namespace } = older([refused('EBUSY')], [DONE, refused('EEXIST'), DONE]);
  await expect(renameLink(namespace, link)).rejects.toMatchObject({ code: 'EEXIST' });
  expect(asked).toEqual(['podw1', 'down', 'podw1?', 'up']);
});

test('one whose name another has is not set down', async () => {
  const { asked, namespace } = older([refused('EEXIST')]);
  await expect(renameLink(namespace, link)).rejects.toMatchObject({ code: 'EEXIST' });
  expect(asked).toEqual(['podw1']);
});
