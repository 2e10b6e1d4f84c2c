import { defineConfig } from 'vitest/config';

export default defineConfig({
  // Workspaces resolve to their TypeScript sources, so tests need no build of ours but the native one.
  ssr: { resolve: { conditions: ['podwire:source', 'node', 'import', 'default'] } },
  test: {
    include: ['**/*.test.ts'],
    exclude: ['**/node_modules/**', '**/dist/**', '**/build/**'],
    pool: 'forks',
    // Files share the network namespace of test/support/isolated.mjs, however many processors there are.
    fileParallelism: false,
    setupFiles: ['test/support/clean-namespace.ts'],
    // A guard against tests that hang, no measure of speed: some take ten times as long beside further tests.
    testTimeout: 60_000,
    // Vitest's own second is less than a busy machine may keep a process from its turn.
    expect: { poll: { timeout: 20_000 } },
    hookTimeout: 120_000,
  },
});
