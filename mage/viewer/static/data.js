// Loads data paths from the server, from script files of an export, or from inline scripts.
"use strict";
window.mage = {};
(function () {
  const {useState, useEffect} = htmPreact;
  const cache = new Map(); // data path -> value
  const waiting = new Map(); // data path -> functions that take the value of a loading script
  const loading = new Map(); // data path -> promise of a request that has not ended

  // Scripts of an export call this function.
  window.mageData = (path, value) => {
    cache.set(path, value);
    (waiting.get(path) || []).forEach((resolve) => resolve(value));
    waiting.delete(path);
  };

  function loadScript(path) {
    return new Promise((resolve, reject) => {
      waiting.set(path, [...(waiting.get(path) || []), resolve]);
      const script = document.createElement("script");
      script.src = `data/${encodeURI(path)}.js`;
      script.onerror = () => reject(new Error("This part is not in the static copy."));
      document.head.appendChild(script);
    });
  }

  async function fetchPath(path) {
    const response = await fetch(`data/${encodeURI(path)}`);
    if (response.ok) return response.json();
    const text = await response.text();
    throw new Error(response.status === 404 ? `There is no ${path}.` : text);
  }

  mage.isStatic = Boolean(window.mageStatic);

  mage.load = async (path, {fresh = false} = {}) => {
    if (cache.has(path) && (!fresh || mage.isStatic)) return cache.get(path);
    if (window.mageStatic && window.mageStatic.inline)
      throw new Error("This part is not in the static copy.");
    if (!loading.has(path)) {
      const request = mage.isStatic ? loadScript(path) : fetchPath(path);
      loading.set(path, request.finally(() => loading.delete(path)));
    }
    const value = await loading.get(path);
    cache.set(path, value);
    return value;
  };

  // A hook: {value, error}. `every(value)` gives the seconds until the next load, 0 for never.
  // Without a path nothing is loaded.
  mage.useData = (path, every = () => 0) => {
    const [state, setState] = useState({path, value: cache.get(path), error: null});
    useEffect(() => {
      if (!path) return undefined;
      let active = true;
      let timer = 0;
      async function step(fresh) {
        let value = null;
        try {
          value = await mage.load(path, {fresh});
          if (active) setState({path, value, error: null});
        } catch (error) {
          if (active)
            setState((old) => ({path, value: old.path === path ? old.value : undefined, error}));
        }
        const seconds = mage.isStatic ? 0 : every(value);
        if (active && seconds) timer = setTimeout(() => step(true), 1000 * seconds);
      }
      step(true);
      return () => {
        active = false;
        clearTimeout(timer);
      };
    }, [path]);
    return state.path === path ? state : {path, value: cache.get(path), error: null};
  };
})();
