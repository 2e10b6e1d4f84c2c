import { describe, expect, test, vi } from 'vitest';

import type { LinkSource, NodeLink } from '../node/links.js';

/** Somebody who changes the links that a source tells of. */
export interface LinkChanger {
  /** Makes the link, or changes it. */
  put(link: NodeLink): void;
  remove(name: string): void;
}

export interface OpenedLinks {
  readonly source: LinkSource;
  readonly changer: LinkChanger;
  /** A key that the node has, with a value that it may have. */
  readonly sysctl: { readonly key: readonly string[]; readonly value: string };
}

/** What every implementation of {@link LinkSource} does. */
export function linkSourceContract(open: () => Promise<OpenedLinks>): void {
  describe('links', () => {
    test('are listed as they are', async () => {
      const { source, changer } = await open();
      changer.put({ name: 'eth7', mtuBytes: 1400, up: false });
      const seven = async () => (await source.links()).filter(({ name }) => name === 'eth7');
      expect(await seven()).toEqual([{ name: 'eth7', mtuBytes: 1400, up: false }]);
      changer.put({ name: 'eth7', mtuBytes: 9000, up: true });
      expect(await seven()).toEqual([{ name: 'eth7', mtuBytes: 9000, up: true }]);
      changer.remove('eth7');
      expect(await seven()).toEqual([]);
      await source.close();
    });

    test('that are made, changed and removed are told, until the watch is closed', async () => {
      const { source, changer } = await open();
      const names: (string | undefined)[] = [];
      const ended = vi.fn();
      const watch = await source.watch({ changed: (name) => names.push(name), ended });
      const told = async (change: () => void) => {
        names.splice(0);
        change();
        await vi.waitFor(() => expect(names).toContain('eth7'), { timeout: 20_000 });
      };
      await told(() => changer.put({ name: 'eth7', mtuBytes: 1400, up: false }));
      await told(() => changer.put({ name: 'eth7', mtuBytes: 1300, up: false }));
      await told(() => changer.put({ name: 'eth7', mtuBytes: 1300, up: true }));
      await told(() => changer.remove('eth7'));
      watch.close();
      names.splice(0);
      changer.put({ name: 'eth8', mtuBytes: 1400, up: false });
      await source.links();
      changer.remove('eth8');
      expect(names).toEqual([]);
      expect(ended).not.toHaveBeenCalled();
      await source.close();
    });
  });

  describe('sysctls', () => {
    test('are read and written; one that is not there is null, and cannot be written', async () => {
      const { source, sysctl } = await open();
      await source.writeSysctls([sysctl]);
      expect(await source.readSysctls([sysctl.key, ['net', 'ipv4', 'nothing']])).toEqual([sysctl.value, null]);
      await expect(source.writeSysctls([{ key: ['net', 'ipv4', 'nothing'], value: '1' }])).rejects.toMatchObject({
        code: 'KERNEL_UNSUPPORTED',
      });
      await source.close();
    });
  });
}
