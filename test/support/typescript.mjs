// Lets a child process run the workspaces' TypeScript sources, as vitest does: node --import test/support/typescript.mjs FILE.ts
import { readFile } from 'node:fs/promises';
import { register } from 'node:module';
import { fileURLToPath } from 'node:url';
import { isMainThread } from 'node:worker_threads';

// Node runs the hooks in a thread of their own, out of this same file.
if (isMainThread) register(import.meta.url);

export async function resolve(specifier, context, next) {
  const withSources = { ...context, conditions: [...context.conditions, 'podwire:source'] };
  try {
    return await next(specifier, withSources);
  } catch (error) {
    if (error.code !== 'ERR_MODULE_NOT_FOUND' || !specifier.endsWith('.js')) throw error;
    return next(specifier.replace(/\.js$/, '.ts'), withSources);
  }
}

export async function load(url, context, next) {
  if (!url.endsWith('.ts')) return next(url, context);
  // Loaded in the hooks' thread alone: it takes most of the time that such a program needs to start.
  const { default: ts } = await import('typescript');
  const compilerOptions = { module: ts.ModuleKind.ESNext, target: ts.ScriptTarget.ES2023, inlineSourceMap: true };
  const { outputText } = ts.transpileModule(await readFile(fileURLToPath(url), 'utf8'), { compilerOptions });
  return { format: 'module', source: outputText, shortCircuit: true };
}
